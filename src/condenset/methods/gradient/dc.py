"""Gradient matching (DC): dataset condensation with gradient matching (Zhao, Mopuri and Bilen, ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from condenset.methods.gradient.chunks import classes_per_chunk
from condenset.methods.gradient.gradient_matching import condense
from condenset.methods.recipe import TINY_NETWORK, GradientMatchingRecipe
from condenset.methods.registry import Method
from condenset.training.protocol import DIGITS, DIGITS_NETWORK

SMALL_IMAGE_STEPS = 1_000  # at the experiment scale `small`


@dataclass(frozen=True, kw_only=True)
class DCRecipe(GradientMatchingRecipe):
    """Settings of gradient matching without augmentation; images start from noise."""

    init: str = "noise"
    augment: str = "none"


def digits_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the quick settings for the digits."""
    if (dataset, size) != DIGITS:
        return {}
    return {"iterations": 10, "outer_steps": 10, "inner_epochs": 5, "batch_size": 64, "network": DIGITS_NETWORK}


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the quick settings for the digits; images that start from noise need more and larger steps."""
    quick = digits_presets(ipc, dataset, size)
    return quick | {"iterations": 20, "lr": 1.0} if quick else {}


def small_iterations(recipe: GradientMatchingRecipe) -> int:
    """Return about the same number of image steps for small and large sets."""
    return max(50, SMALL_IMAGE_STEPS // recipe.loops[0])


METHOD = Method(
    name="dc",
    recipe=DCRecipe,
    condense=condense,
    summary="Gradient matching: learn images on which a network has the loss gradients of the real images.",
    source="Zhao et al., ICLR 2021",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 2, "batch_size": 32, "outer_steps": 2, "inner_epochs": 1},
    small_iterations=small_iterations,
    classes_per_chunk=classes_per_chunk,
    supports_snapshots=True,
)
