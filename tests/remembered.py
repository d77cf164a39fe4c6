"""A memory that is filled and learned from in no time."""

from __future__ import annotations

import dataclasses
from typing import Any

import condenset as cs
from condenset.recipes import RECIPES

LEARNING: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "iterations": 3, "batch": 4, "epochs": 2}
TRAINING: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "epochs": 4}


def tiny_memory(method: str = "random", **options: Any) -> cs.Memory:
    names = {field.name for field in dataclasses.fields(RECIPES[method])}
    fields = {key: value for key, value in LEARNING.items() if key in names}
    return cs.Memory(**{"ipc": 2, "method": method, "device": "cpu", **fields, **options})
