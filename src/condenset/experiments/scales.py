"""Scales of an experiment: how large its networks are and how long they train.

Methods state their own settings for the scales: `tiny` and `small_iterations` in `condenset.methods.registry.Method`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from condenset.augment import remove_unused_flip
from condenset.config import field_names
from condenset.data.image_data import ImageData
from condenset.methods import METHODS, Recipe, make_recipe_for
from condenset.training.protocol import Protocol, make_protocol

SCALES = ("tiny", "small", "paper")
TINY_NETWORK = "convnet(width=16, depth=2)"
NUM_SETS = {"tiny": 1, "small": 1, "paper": 5}  # sets behind an accuracy, each with its own seed
PROTOCOL_FIELDS: dict[str, dict[str, Any]] = {
    "tiny": {"network": TINY_NETWORK, "num_networks": 2, "epochs": 10},
    "small": {"num_networks": 3, "epochs": 300},
    "paper": {},
}
WHOLE_PROTOCOL_FIELDS: dict[str, dict[str, Any]] = {  # on a large whole dataset; they override those above
    "tiny": {"epochs": 3},
    "small": {"epochs": 100},
    "paper": {},
}


def scaled_recipe(
    scale: str, method: str, ipc: int, data: ImageData, fields: Mapping[str, Any], schedule: str | None
) -> Recipe:
    """Return the recipe of a method at a scale; `fields` override the scale, and unknown ones are ignored."""
    entry = METHODS.lookup(method)
    names = field_names(entry.recipe)
    chosen = {name: value for name, value in fields.items() if name in names}
    scaled = entry.tiny if scale == "tiny" else {}
    settings = {**scaled, **chosen, "ipc": ipc}
    recipe = make_recipe_for(method, data, schedule=schedule, **settings)
    if scale == "small" and "iterations" in names and "iterations" not in chosen:
        preset: int = recipe.iterations  # type: ignore[attr-defined]
        iterations: dict[str, Any] = {"iterations": min(entry.small_iterations(recipe), preset)}
        recipe = dataclasses.replace(recipe, **iterations)
    return recipe


def scaled_protocol(scale: str, data: ImageData, fields: Mapping[str, Any], *, whole: bool = False) -> Protocol:
    """Return the evaluation protocol at a scale, or that of a large whole dataset; `fields` override the scale."""
    scaled = {**PROTOCOL_FIELDS[scale], **(WHOLE_PROTOCOL_FIELDS[scale] if whole else {})}
    protocol = make_protocol(name=data.name, size=data.size, whole=whole, **{**scaled, **fields})
    return remove_unused_flip(protocol, allow_hflip=data.allow_hflip)
