"""The options that commands share: one name, one meaning, one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Dataset = Annotated[
    str | None, typer.Argument(help="A known name ('condenset data list') or a path: a folder or an .npz file.")
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "--methods",
        metavar="NAMES",
        help="A method ('condenset methods'), several joined by commas, or all; repeatable.",
    ),
]
Ipcs = Annotated[
    list[str] | None,
    typer.Option("--ipc", metavar="NUMBERS", help="Images per class, several joined by commas; repeatable."),
]
Network = Annotated[str | None, typer.Option(help="Such as convnet(norm='batch') ('condenset networks').")]
Iterations = Annotated[
    int | None,
    typer.Option(help="Iterations of condensing ('condenset methods' has the defaults); coresets have none."),
]
Lr = Annotated[float | None, typer.Option(help="Learning rate of the images.")]
Init = Annotated[str | None, typer.Option(help="What images start as: real or noise.")]
Augment = Annotated[
    str | None,
    typer.Option(
        help="Such as crop_rotate, or none; rotate180 turns all round, rotate by up to 15 degrees "
        "(default: color_crop_cutout_flip_scale_rotate)."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Any option of the methods ('condenset methods'), or METHOD.FIELD=VALUE of one of them; repeatable.",
    ),
]
AllowFewer = Annotated[
    bool | None, typer.Option("--allow-fewer", help="A class with fewer images than --ipc gives them all.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same set (default 0).")]
ScoreSeed = Annotated[
    int | None, typer.Option(help="The same seed gives the same score (default: the set's own, as its run has it).")
]
PoolSeed = Annotated[int | None, typer.Option(help="The same seed gives the same networks (default 0).")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or mps (default: the best there is).")]
Precision = Annotated[
    str | None, typer.Option(help="float32 or bfloat16 (default: bfloat16 on GPUs of NVIDIA that have it).")
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="What data, images and the classes that pass together may take at most, such as 4GiB or 512M "
        "(default: what keeps the device busy, at most what is free; of a resumed run, what it had)."
    ),
]
Nets = Annotated[
    int | None, typer.Option(help="Networks to train on each set (default 20; fewer for digits and small scales).")
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Epochs each network trains on a set (default 1000; fewer for digits and small scales); not on a whole "
        "dataset, which has a number of its own."
    ),
]
WholeEpochs = Annotated[
    int | None,
    typer.Option(
        help="Epochs each network trains on the whole dataset (default 200; fewer for digits and small scales)."
    ),
]
OwnSteps = Annotated[
    bool | None, typer.Option("--own-steps", help="Train by the steps that a set carries (dd's), not by --epochs.")
]
Out = Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one under runs/).")]
Config = Annotated[Path | None, typer.Option(help="A recipe.toml to repeat; options given here win over it.")]
DataDir = Annotated[Path | None, typer.Option(help="Where datasets lie (default: $CONDENSET_DATA or the cache).")]
Size = Annotated[int | None, typer.Option(help="Resize images to this side (folders of images).")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Whole = Annotated[bool | None, typer.Option(help="Also train on the whole dataset, the upper bound (default: yes).")]
