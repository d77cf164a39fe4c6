"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from condenset.io.user_directories import expand_user


def expand_path(value: Any) -> Any:
    """Replace `~` in a path or in a list of paths: the shell does not do it in `--out=~/run`."""
    if isinstance(value, Path):
        return expand_user(value)
    return [expand_user(path) for path in value] if value else value


# Data
Dataset = Annotated[
    str | None, typer.Argument(help="Dataset name ('condenset data list') or path: a folder or an .npz file.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Directory of the datasets (default: $CONDENSET_DATA, else the user's cache).")
]
Train = Annotated[str | None, typer.Option(help="In place of DATASET: path of the training images. See also --test.")]
LOAD_OPTIONS: dict[str, Any] = {  # by field of LoadOptions
    "size": Annotated[int | None, typer.Option(help="Resize images to SIZE x SIZE pixels (folders and .npz files).")],
    "fit": Annotated[
        str | None,
        typer.Option(
            help="Make images square: crop cuts the central square, pad adds borders (default with --size: crop)."
        ),
    ],
    "background": Annotated[
        str | None,
        typer.Option(help="Colour under transparent pixels and of borders: a name or #rrggbb (default: white)."),
    ],
    "white_level": Annotated[
        int | None,
        typer.Option(help="Value of 16-bit image files that becomes white, such as 4095 (default: 65535)."),
    ],
    "nested": Annotated[
        bool | None,
        typer.Option(
            "--nested", help="Make a class of every folder that contains images. Its name is the relative path."
        ),
    ],
    "skip_bad": Annotated[bool | None, typer.Option("--skip-bad", help="Leave out image files that cannot be read.")],
    "test": Annotated[
        str | None, typer.Option(help="Path of the test images: a folder of class folders or an .npz file.")
    ],
    "test_share": Annotated[
        float | None,
        typer.Option(
            help="Share of every class to hold out if there is no test split (default: 0.2 if a test is needed)."
        ),
    ],
}
LoadFields = Mapping[str, Any]  # the LOAD_OPTIONS that the user gives
NO_LOAD_FIELDS: LoadFields = MappingProxyType({})
NumClasses = Annotated[
    int | None, typer.Option("--classes", help="Number of classes of a dataset that does not exist yet.")
]
NumImages = Annotated[
    int | None, typer.Option("--images", help="Images per class of a dataset that does not exist yet.")
]

# What to condense
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "--methods",
        metavar="NAMES",
        help="Methods ('condenset methods'), separated by commas, or 'all'. Repeatable.",
    ),
]
ImagesPerClass = Annotated[
    list[str] | None,
    typer.Option("--ipc", metavar="NUMBERS", help="Images per class, separated by commas (default: 10). Repeatable."),
]
IpcShare = Annotated[
    float | None,
    typer.Option(
        help="In place of --ipc: the share of the images of each class, such as 0.01. At least one per class."
    ),
]
ExperimentIpc = Annotated[
    list[str] | None,
    typer.Option(
        "--ipc", metavar="NUMBERS", help="Images per class, separated by commas (default: by --scale). Repeatable."
    ),
]
Network = Annotated[
    str | None,
    typer.Option(help="Network ('condenset networks'), such as \"convnet(norm='batch')\" (default: convnet)."),
]
EvaluationNetworks = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        metavar="NETWORKS",
        help="Networks to train ('condenset networks'), separated by commas, or 'own' for the network that each set "
        "was learned with (default: that of the run; the one that all sets were learned with; else convnet). "
        "Repeatable.",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        help="Iterations of the method (default: see --schedule and 'condenset methods'). Coreset methods have none."
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option("--lr", help="Learning rate of the images (default: see --schedule and 'condenset methods')."),
]
Init = Annotated[str | None, typer.Option(help="Initial images: real or noise (default: see 'condenset methods').")]
Augment = Annotated[
    str | None,
    typer.Option(
        help="Augmentation, such as crop_rotate (one of them), color+crop (both), or none (default: "
        "color_crop_cutout_flip_scale_rotate). "
        "rotate turns by up to 15 degrees, rotate180 by any angle."
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Settings of dm: fast, or paper, the slower ones of the paper (default: fast; 'condenset paper': paper).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a recipe field of all methods that have it ('condenset methods'), or of one method: "
        "METHOD.FIELD=VALUE. Repeatable.",
    ),
]
AllowFewer = Annotated[
    bool | None, typer.Option("--allow-fewer", help="Use all images of a class that has fewer than --ipc.")
]

Pool = Annotated[
    Path | None,
    typer.Option(
        callback=expand_path,
        help="Directory of trained networks for the methods that need them. Missing ones are trained and stored there, "
        "so that other runs can use them (default: the directory of the run).",
    ),
]

# How to evaluate
ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="How networks are trained on a set: paper, or modern, which trains longer with stronger augmentation "
        "(default: paper). --nets, --epochs and --augment change parts of it.",
    ),
]
EvaluationProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        metavar="NAME",
        help="How networks are trained on a set: paper or modern (default: as in the run of the sets, else paper).",
    ),
]
NumNetworks = Annotated[
    int | None,
    typer.Option("--nets", help="Networks to train on each set (default: 20; fewer for digits and small scales)."),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Training epochs on a condensed set (default: 1000, modern 1500; fewer for digits and small scales). "
        "See --whole-epochs for the whole dataset."
    ),
]
EvaluationEpochs = Annotated[
    int | None,
    typer.Option("--epochs", help="Training epochs on each set (default: 1000, modern 1500; fewer for digits)."),
]
Whole = Annotated[
    bool | None, typer.Option("--whole/--no-whole", help="Also train on the whole dataset (default: --whole).")
]
WholeEpochs = Annotated[
    int | None,
    typer.Option(help="Training epochs on the whole dataset (default: 200; fewer for digits and small scales)."),
]
Evaluate = Annotated[bool, typer.Option("--evaluate/--no-evaluate", help="Include the networks that score the sets.")]
LearnedSteps = Annotated[
    bool | None,
    typer.Option("--own-steps", help="Train with the step sizes stored in the set (method dd) instead of --epochs."),
]

PerClass = Annotated[bool, typer.Option("--per-class", help="Also print the accuracy of each class.")]

# Where and how to run
Seed = Annotated[int | None, typer.Option(help="Random seed; the same seed gives the same result (default: 0).")]
EvaluationSeed = Annotated[int | None, typer.Option("--seed", help="Random seed (default: the seed of the set).")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps (default: the fastest available).")]
Precision = Annotated[
    str | None, typer.Option(help="float32 or bfloat16 (default: bfloat16 on NVIDIA GPUs that support it).")
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory limit for data and condensing, such as 4GiB or 512M (default: as much as is useful and free).",
    ),
]
NumGPUs = Annotated[int, typer.Option("--gpus", help="Devices like this one to divide the run over.")]
ResumeMemoryLimit = Annotated[
    str | None, typer.Option("--memory", help="New memory limit, such as 4GiB or 512M (default: unchanged).")
]
ResumeDataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="New directory of the datasets, if they have moved (default: unchanged)."),
]
ResumeDevice = Annotated[str | None, typer.Option("--device", help="New device (default: unchanged).")]

ENGINE_OPTIONS: dict[str, Any] = {  # by field of EngineOptions
    "engine": Annotated[
        str | None,
        typer.Option(help="local (this process) or ray, which divides the work among workers (default: local)."),
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
        float | None, typer.Option(help="GPUs of each Ray worker; 0.5 for two workers per GPU (default: 1).")
    ],
}
EngineFields = Mapping[str, Any]  # the ENGINE_OPTIONS that the user gives
NO_ENGINE_FIELDS: EngineFields = MappingProxyType({})

# Files and output
Out = Annotated[
    Path | None, typer.Option(callback=expand_path, help="Directory of the run (default: a new one under runs/).")
]
Config = Annotated[
    Path | None,
    typer.Option(callback=expand_path, help="A recipe.toml to repeat. Options on the command line take precedence."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write curves of losses, accuracies and seconds to RUN/tensorboard.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit without writing anything.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


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
