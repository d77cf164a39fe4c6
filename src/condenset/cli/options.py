"""Options that several commands share: one name, one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Data
Dataset = Annotated[
    str | None, typer.Argument(help="Dataset name ('condenset data list') or path: a folder or an .npz file.")
]
DataDir = Annotated[
    Path | None, typer.Option(help="Directory of the datasets (default: $CONDENSET_DATA, else the user's cache).")
]
Size = Annotated[int | None, typer.Option(help="Resize images to SIZE x SIZE pixels (folders of images only).")]

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
EvaluationNetwork = Annotated[
    str | None,
    typer.Option("--network", help="Network to train (default: the network that the set was made with, else convnet)."),
]
Iterations = Annotated[
    int | None,
    typer.Option(help="Iterations of the method (default: see 'condenset methods'). Coreset methods have none."),
]
LearningRate = Annotated[
    float | None, typer.Option("--lr", help="Learning rate of the images (default: see 'condenset methods').")
]
Init = Annotated[str | None, typer.Option(help="Initial images: real or noise (default: see 'condenset methods').")]
Augment = Annotated[
    str | None,
    typer.Option(
        help="Augmentation, such as crop_rotate, or none (default: color_crop_cutout_flip_scale_rotate). "
        "rotate turns by up to 15 degrees, rotate180 by any angle."
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

# How to evaluate
NumNetworks = Annotated[
    int | None,
    typer.Option("--nets", help="Networks to train on each set (default: 20; fewer for digits and small scales)."),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Training epochs on a condensed set (default: 1000; fewer for digits and small scales). "
        "See --whole-epochs for the whole dataset."
    ),
]
EvaluationEpochs = Annotated[
    int | None, typer.Option("--epochs", help="Training epochs on each set (default: 1000; fewer for digits).")
]
Whole = Annotated[
    bool | None, typer.Option("--whole/--no-whole", help="Also train on the whole dataset (default: --whole).")
]
WholeEpochs = Annotated[
    int | None,
    typer.Option(help="Training epochs on the whole dataset (default: 200; fewer for digits and small scales)."),
]
LearnedSteps = Annotated[
    bool | None,
    typer.Option("--own-steps", help="Train with the step sizes stored in the set (method dd) instead of --epochs."),
]

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
ResumeMemoryLimit = Annotated[
    str | None, typer.Option("--memory", help="New memory limit, such as 4GiB or 512M (default: unchanged).")
]
ResumeDataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="New directory of the datasets, if they have moved (default: unchanged)."),
]
ResumeDevice = Annotated[str | None, typer.Option("--device", help="New device (default: unchanged).")]

# Files and output
Out = Annotated[Path | None, typer.Option(help="Directory of the run (default: a new one under runs/).")]
Config = Annotated[
    Path | None, typer.Option(help="A recipe.toml to repeat. Options on the command line take precedence.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
