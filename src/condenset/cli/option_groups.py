"""Groups of options that several commands share, each of which is one parameter of the functions of commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from condenset.cli import options
from condenset.cli.completion import ENGINES, FITS, complete_from

LOAD_OPTIONS: dict[str, Any] = {  # by field of LoadOptions, for all commands that read a dataset
    "size": Annotated[
        int | None,
        typer.Option(metavar="PIXELS", help="Resize the images of folders and .npz files to PIXELS x PIXELS."),
    ],
    "fit": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_from(FITS),
            help="Make images square: crop cuts the central square, pad adds borders (default with --size: crop).",
        ),
    ],
    "background": Annotated[
        str | None,
        typer.Option(
            metavar="COLOR", help="Colour under transparent pixels and of borders: a name or #rrggbb (default: white)."
        ),
    ],
    "white_level": Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="Value of 16-bit image files that becomes white, such as 4095 (default: 65535)."
        ),
    ],
    "nested": Annotated[
        bool | None,
        typer.Option(
            "--nested", help="Make a class of every folder that contains images. Its name is the relative path."
        ),
    ],
    "skip_bad": Annotated[bool | None, typer.Option("--skip-bad", help="Leave out image files that cannot be read.")],
    "test": Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Path of the test images: a folder of class folders or an .npz file."),
    ],
    "test_share": Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of every class to hold out if there is no test split (default: 0.2 if a test is needed).",
        ),
    ],
}
VALIDATION_OPTIONS: dict[str, Any] = {  # of commands that score sets; fields of LoadOptions too
    **LOAD_OPTIONS,
    "val_share": Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of every class of the training images to hold out, and to score on in place of the test images "
            "(default: 0).",
        ),
    ],
}
ENGINE_OPTIONS: dict[str, Any] = {  # by field of EngineOptions
    "engine": Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_from(ENGINES),
            help="local (this process) or ray, which divides the work among workers (default: local).",
        ),
    ],
    "address": Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Ray cluster: auto (the one that this machine belongs to), HOST:PORT or ray://HOST:PORT (default: a "
            "Ray of this machine, started for the run).",
        ),
    ],
    "gpus_per_worker": Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="GPUs of each Ray worker; 0.5 for two workers per GPU (default: 1)."),
    ],
}
RECIPE_OPTIONS: dict[str, Any] = {  # what to condense, and how
    "methods": options.Methods,
    "ipcs": options.ImagesPerClass,
    "ipc_share": options.IpcShare,
    "network": options.Network,
    "schedule": options.Schedule,
    "iterations": options.Iterations,
    "lr": options.LearningRate,
    "init": options.Init,
    "augment": options.Augment,
    "settings": options.Settings,
    "pool": options.Pool,
    "allow_fewer": options.AllowFewer,
    "zca": options.ZCA,
}
RUN_OPTIONS: dict[str, Any] = {  # where to compute, and what to write
    "seed": options.Seed,
    "device": options.Device,
    "precision": options.Precision,
    "memory_limit": options.MemoryLimit,
    "out": options.Out,
    "config": options.Config,
    "data_dir": options.DataDir,
    "overwrite": options.Overwrite,
    "snapshots": options.Snapshots,
    "tensorboard": options.TensorBoard,
    "dry_run": options.DryRun,
    "as_json": options.AsJson,
}
GROUPS: dict[str, dict[str, Any]] = {  # by the name of the parameter that a command has for the group
    "load_fields": LOAD_OPTIONS,
    "score_load_fields": VALIDATION_OPTIONS,
    "engine_fields": ENGINE_OPTIONS,
    "recipe_options": RECIPE_OPTIONS,
    "run_options": RUN_OPTIONS,
}
OptionValues = Mapping[str, Any]  # the options of a group that the user gives, by name


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is named in `GROUPS` by the options of the group."""
    parameters: list[inspect.Parameter] = []
    groups: list[str] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name not in GROUPS:
            parameters.append(parameter)
            continue
        groups.append(parameter.name)
        for name, annotation in GROUPS[parameter.name].items():
            parameters.append(parameter.replace(name=name, annotation=annotation, default=None))

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        for group in groups:
            values = {name: arguments.pop(name) for name in GROUPS[group]}
            arguments[group] = {name: value for name, value in values.items() if value is not None}
        command(**arguments)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
