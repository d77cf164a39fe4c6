"""Options of how sets are evaluated, which several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from condenset.cli.completion import PROTOCOLS, complete_from, complete_networks
from condenset.cli.options import expand_path

ProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        autocompletion=complete_from(PROTOCOLS),
        metavar="NAME",
        help="How networks are trained on a set: paper, or modern, which trains longer with stronger augmentation "
        "(default: paper).",
    ),
]
EvaluationProtocolName = Annotated[
    str | None,
    typer.Option(
        "--protocol",
        autocompletion=complete_from(PROTOCOLS),
        metavar="NAME",
        help="How networks are trained on a set: paper or modern (default: as in the run of the sets, else paper).",
    ),
]
EvaluationNetworks = Annotated[
    list[str] | None,
    typer.Option(
        "--network",
        autocompletion=complete_networks,
        metavar="NETWORKS",
        help="Networks to train ('condenset networks'), separated by commas, or 'own' for the network that each set "
        "was learned with (default: that of the run; the one that all sets were learned with; else convnet). "
        "Repeatable.",
    ),
]
NumNetworks = Annotated[
    int | None,
    typer.Option(
        "--nets",
        metavar="NUMBER",
        help="Networks to train on each set (default: 20; fewer for digits and small scales).",
    ),
]
EvaluationNumNetworks = Annotated[
    int | None,
    typer.Option(
        "--nets",
        metavar="NUMBER",
        help="Networks to train on each set (default: as in the run of the sets, else 20; 3 for digits).",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Training epochs on each set (default: 1000, modern 1500; fewer for digits and small scales). The paper "
        "protocol trains one more, as the code of the paper does.",
    ),
]
EvaluationEpochs = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="NUMBER",
        help="Training epochs on each set (default: as in the run of the sets, else 1000, modern 1500; 500 for "
        "digits). The paper protocol trains one more, as the code of the paper does.",
    ),
]
Whole = Annotated[
    bool | None, typer.Option("--whole/--no-whole", help="Also train on the whole dataset (default: --whole).")
]
WholeEpochs = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="Training epochs on the whole dataset (default: 200; fewer for digits and small scales; the "
        "epochs of a set if there are fewer than 1,280 images).",
    ),
]
Evaluate = Annotated[
    bool,
    typer.Option("--evaluate/--no-evaluate", help="Include the networks that score the sets (default: --evaluate)."),
]
LearnedSteps = Annotated[
    bool | None,
    typer.Option("--own-steps", help="Train with the step sizes that were learned with the set (dd, gtn, mtt)."),
]
EvaluationOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIRECTORY",
        callback=expand_path,
        help="Directory of the evaluation (default: a new one under runs/).",
    ),
]
PerClass = Annotated[bool, typer.Option("--per-class", help="Also print the accuracy of each class.")]
EvaluationSeed = Annotated[
    int | None, typer.Option("--seed", metavar="NUMBER", help="Random seed (default: the seed of the set).")
]
