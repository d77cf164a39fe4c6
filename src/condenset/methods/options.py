"""Types of the keywords that become fields of a recipe, for editors and type checkers."""

from __future__ import annotations

import os
from typing import TypedDict

from condenset.networks import NetworkBuilder


class RecipeOptions(TypedDict, total=False):
    """Fields of the built-in recipes, as keywords of `condense` and `Memory`. A method accepts those of its recipe."""

    allow_fewer: bool
    augment: str
    bandwidth: float
    batch_size: int
    epochs: int
    fixed_network: bool
    group: str
    init: str
    inner_epochs: int | None
    iterations: int
    kernel: str
    lr: float
    momentum: float
    network: str | NetworkBuilder
    network_lr: float
    outer_steps: int | None
    pool: str | os.PathLike[str]
    ridge: float
    softness: float
    step_size: float
    steps: int
