"""Gradient matching with differentiable Siamese augmentation (DSA; Zhao and Bilen, ICML 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from condenset.methods.gradient.chunks import classes_per_chunk
from condenset.methods.gradient.dc import TINY, digits_presets, small_iterations
from condenset.methods.gradient.gradient_matching import condense
from condenset.methods.recipe import GradientMatchingRecipe, default_loops
from condenset.methods.registry import Method


@dataclass(frozen=True, kw_only=True)
class DSARecipe(GradientMatchingRecipe):
    """Settings of gradient matching with Siamese augmentation; images start from real images.

    Fields: `outer_steps`, `inner_epochs` and `network_lr` (see `GradientMatchingRecipe`); `network`, `iterations`,
    `lr`, `momentum`, `batch_size`, `init` and `augment` (see `MatchingRecipe`); `ipc` and `allow_fewer` (see `Recipe`).
    """


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's settings for CIFAR-100, and quick settings for the digits."""
    if dataset == "cifar100" and ipc >= 50:
        return {"outer_steps": 10, "inner_epochs": 10}
    return digits_presets(ipc, dataset, size)


METHOD = Method(
    name="dsa",
    recipe=DSARecipe,
    condense=condense,
    summary="Gradient matching under an augmentation that real and synthetic images share.",
    presets=presets,
    ipc_defaults=default_loops,
    tiny=TINY,
    small_iterations=small_iterations,
    classes_per_chunk=classes_per_chunk,
    supports_snapshots=True,
)
