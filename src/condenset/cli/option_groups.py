"""Groups of options that several commands share, each of which is one parameter of the functions of commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import typer

from condenset.cli.completion import ENGINES, FITS, complete_from

LOAD_OPTIONS: dict[str, Any] = {  # by field of LoadOptions
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
LoadFields = Mapping[str, Any]  # the LOAD_OPTIONS that the user gives
NO_LOAD_FIELDS: LoadFields = MappingProxyType({})

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
EngineFields = Mapping[str, Any]  # the ENGINE_OPTIONS that the user gives
NO_ENGINE_FIELDS: EngineFields = MappingProxyType({})


def add_load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `load_fields` of a command by `LOAD_OPTIONS`; the command gets those that are given."""
    return _expand_parameter(command, "load_fields", LOAD_OPTIONS)


def add_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `engine_fields` of a command by `ENGINE_OPTIONS`; the command gets those that are given."""
    return _expand_parameter(command, "engine_fields", ENGINE_OPTIONS)


def _expand_parameter(command: Callable[..., None], group: str, options: Mapping[str, Any]) -> Callable[..., None]:
    """Replace a parameter of a command, a mapping, by one parameter per option."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name != group:
            parameters.append(parameter)
            continue
        for name, annotation in options.items():
            parameters.append(parameter.replace(name=name, annotation=annotation, default=None))

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in options}
        command(**arguments, **{group: {name: value for name, value in values.items() if value is not None}})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
