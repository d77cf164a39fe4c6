"""The keywords that become fields of a recipe: their types, and functions that are given for fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from condenset import networks
from condenset.methods.matching.objectives import OBJECTIVES, Objective
from condenset.methods.matching.recipe import SAMPLERS
from condenset.methods.matching.user_functions import UserSampler, register_function
from condenset.networks import NetworkBuilder


class RecipeOptions(TypedDict, total=False):
    """Fields of the built-in recipes, as keywords of `condense` and `Memory`. A method accepts those of its recipe."""

    allow_fewer: bool
    augment: str
    average: float
    batch_size: int
    calibration: float
    calibration_images: int
    clamp: bool
    decoder: str
    depth: int
    discrimination: float
    epochs: int
    expert_epochs: int
    features: str
    group: str
    init: str
    inner_epochs: int | None
    iterations: int
    kernel: str
    kl_weight: float
    layer_weight: float
    layers: str
    learn_labels: bool
    lr: float
    lr_decay: bool
    max_start_epoch: int
    momentum: float
    network: str | NetworkBuilder
    network_lr: float
    objective: str | Objective
    outer_steps: int | None
    partition: int
    pool: str | os.PathLike[str]
    pool_epochs: int
    pool_size: int
    ridge: float
    sampler: str | UserSampler
    softness: float
    step_size: float
    step_size_lr: float
    steps: int
    student_batch: int | None
    train_images: int
    warmup: float
    width: int
    zca: bool


def name_functions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with functions replaced by names, which a recipe can record.

    The functions are available under these names for the rest of the process: a network builder, an objective and a
    sampler of networks.
    """
    named = dict(options)
    if "network" in named:
        named["network"] = networks.as_spec(named["network"])
    for field, built_in in (("objective", OBJECTIVES), ("sampler", SAMPLERS)):
        if callable(named.get(field)):
            named[field] = register_function(field, named[field], built_in)
    return named
