"""A small plan and its run, for what lies below the command line."""

from __future__ import annotations

from pathlib import Path

from condenset import Splits
from condenset.engine import Place
from condenset.plans import Plan, Wishes, make_plan
from condenset.runs import Run
from condenset.workflow import execute
from plain import tiny_data

SPLITS = Splits(train=tiny_data([6, 6]), test=tiny_data([6, 6], seed=1))
NETWORK = "convnet(width=8, depth=1)"
CPU = Place.best("cpu")


def plan_of(**fields: object) -> Plan:
    wishes: dict[str, object] = {
        "methods": ("random", "dm"),
        "ipcs": (1,),
        "recipe": {"iterations": 2, "network": NETWORK},
        "protocol": {"nets": 2, "epochs": 1, "network": NETWORK},
        "whole": False,
        **fields,
    }
    return make_plan(SPLITS.train, Wishes(**wishes), dataset="tiny")  # type: ignore[arg-type]


def go(plan: Plan, folder: Path | None, **fields: object) -> list[dict[str, object]]:
    return execute(plan, SPLITS, Run(place=CPU, folder=folder, **fields))
