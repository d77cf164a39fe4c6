"""Request, make and execute tiny plans, without the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from condenset import Splits
from condenset.engine import ComputeDevice
from condenset.methods import METHODS
from condenset.pipeline import condensing
from condenset.pipeline.execute import execute_plan
from condenset.pipeline.plan import Plan, make_plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import Record
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

SPLITS = Splits(train=tiny_data([6, 6]), test=tiny_data([6, 6], seed=1))
NETWORK = "convnet(width=8, depth=1)"
CPU = ComputeDevice.select("cpu")
SCORE_REQUEST = RunRequest(  # the fastest run that scores a set
    methods=("random",),
    ipcs=(1,),
    protocol_fields={"num_networks": 1, "epochs": 1, "network": NETWORK},
    whole=False,
)


def make_tiny_plan(**fields: Any) -> Plan:
    """Return a plan of `random` and `dm` with one image per class; `fields` are those of a `RunRequest`."""
    defaults: dict[str, Any] = {
        "methods": ("random", "dm"),
        "ipcs": (1,),
        "recipe_fields": {"iterations": 2, "network": NETWORK},
        "protocol_fields": {"num_networks": 2, "epochs": 1, "network": NETWORK},
        "whole": False,
    }
    return make_plan(SPLITS.train, RunRequest(**{**defaults, **fields}), dataset="tiny")


def execute_in(directory: Path, plan: Plan, **fields: Any) -> list[Record]:
    """Execute a plan in a directory; `fields` are those of the `RunContext`."""
    directory.mkdir(exist_ok=True)
    return execute_plan(plan, SPLITS, RunContext(compute=CPU, directory=directory, **fields))


def replace_dm(monkeypatch: pytest.MonkeyPatch, **fields: Callable[..., Any]) -> None:
    """Replace functions of the method `dm` in the executor."""
    dm = dataclasses.replace(METHODS["dm"], **fields)  # type: ignore[arg-type]
    monkeypatch.setattr(condensing, "METHODS", {**METHODS, "dm": dm})
