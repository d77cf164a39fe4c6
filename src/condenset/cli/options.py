"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from condenset.cli.completion import (
    DEVICES,
    INITS,
    PRECISIONS,
    SCHEDULES,
    complete_dataset,
    complete_from,
    complete_methods,
    complete_networks,
)
from condenset.io.user_directories import expand_user


def expand_path(value: Any) -> Any:
    """Replace `~` in a path or in a list of paths: the shell does not do it in `--out=~/run`."""
    if isinstance(value, Path):
        return expand_user(value)
    return [expand_user(path) for path in value] if value else value


# Data
Dataset = Annotated[
    str | None,
    typer.Argument(
        metavar="DATASET",
        autocompletion=complete_dataset,
        help="Dataset name ('condenset data list') or path: a folder or an .npz file.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIRECTORY", help="Directory of the datasets (default: $CONDENSET_DATA, else the user's cache)."
    ),
]
Train = Annotated[
    str | None, typer.Option(metavar="PATH", help="In place of DATASET: path of the training images. See also --test.")
]
NumClasses = Annotated[
    int | None,
    typer.Option("--classes", metavar="NUMBER", help="Number of classes of a dataset that does not exist yet."),
]
NumImages = Annotated[
    int | None,
    typer.Option("--images", metavar="NUMBER", help="Images per class of a dataset that does not exist yet."),
]

# What to condense
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "--methods",
        autocompletion=complete_methods,
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
        metavar="SHARE",
        help="In place of --ipc: the share of the images of each class, such as 0.01. At least one per class.",
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
    typer.Option(
        metavar="NETWORK",
        autocompletion=complete_networks,
        help="Network ('condenset networks'), such as \"convnet(norm='batch')\" (default: convnet).",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Iterations of the method (default: see 'condenset methods NAME'). Coreset methods have none.",
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option("--lr", metavar="NUMBER", help="Learning rate of the images (default: see 'condenset methods NAME')."),
]
Init = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_from(INITS),
        help="Initial images: real or noise (default: see 'condenset methods NAME').",
    ),
]
Augment = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Augmentation, such as crop_rotate (one of them), color+crop (both), or none (default: "
        "color_crop_cutout_flip_scale_rotate). "
        "rotate turns by up to 15 degrees, rotate180 by any angle.",
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        autocompletion=complete_from(SCHEDULES),
        metavar="NAME",
        help="Settings of dm: fast, or paper, the slower ones of the paper (default: fast; 'condenset paper': paper).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a recipe field of all methods that have it ('condenset methods NAME'), or of one method: "
        "METHOD.FIELD=VALUE. Repeatable.",
    ),
]
AllowFewer = Annotated[
    bool | None, typer.Option("--allow-fewer", help="Use all images of a class that has fewer than --ipc.")
]
ZCA = Annotated[
    bool | None, typer.Option("--zca/--no-zca", help="Whiten the images by ZCA (default: no, but mtt as published).")
]
Pool = Annotated[
    Path | None,
    typer.Option(
        metavar="DIRECTORY",
        callback=expand_path,
        help="Directory of trained networks, which runs can share. Missing ones are trained (default: the directory "
        "of the run).",
    ),
]

# Where and how to run
Seed = Annotated[
    int | None, typer.Option(metavar="NUMBER", help="Random seed; the same seed gives the same result (default: 0).")
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete_from(DEVICES), help="cpu, cuda or mps (default: the fastest available)."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=complete_from(PRECISIONS),
        help="float32 or bfloat16 (default: bfloat16 on NVIDIA GPUs that support it).",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory limit for data and condensing, such as 4GiB or 512M (default: as much as is useful and free).",
    ),
]
NumGPUs = Annotated[
    int, typer.Option("--gpus", metavar="NUMBER", help="Devices like this one to divide the run over (default: 1).")
]
ResumeMemoryLimit = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="New memory limit, such as 4GiB or 512M (default: unchanged)."),
]
ResumeDataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIRECTORY",
        help="New directory of the datasets, if they have moved (default: unchanged).",
    ),
]
ResumeDevice = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", autocompletion=complete_from(DEVICES), help="New device (default: unchanged)."
    ),
]

# Files and output
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIRECTORY", callback=expand_path, help="Directory of the run (default: a new one under runs/)."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=expand_path,
        help="A recipe.toml to repeat. Options on the command line take precedence.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write curves of losses, accuracies and seconds to RUN/tensorboard.")
]
Snapshots = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Iterations whose images the report shows (default: 10). 'condenset report RUN --nets 1' adds their "
        "accuracies.",
    ),
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write RUN/report.html (default: --report).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit without writing anything.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
