"""Gradient matching with differentiable Siamese augmentation (DSA; Zhao and Bilen, ICML 2021)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from condenset.methods.gradient.dc import METHOD as DC
from condenset.methods.gradient.dc import digits_presets
from condenset.methods.recipe import GradientMatchingRecipe


@dataclass(frozen=True, kw_only=True)
class DSARecipe(GradientMatchingRecipe):
    """Settings of gradient matching with Siamese augmentation; images start from real images."""


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's settings for CIFAR-100, and quick settings for the digits."""
    if dataset == "cifar100" and ipc >= 50:
        return {"outer_steps": 10, "inner_epochs": 10}
    return digits_presets(ipc, dataset, size)


METHOD = dataclasses.replace(
    DC,
    name="dsa",
    recipe=DSARecipe,
    summary="Gradient matching under an augmentation that real and synthetic images share.",
    source="Zhao and Bilen, ICML 2021",
    presets=presets,
)
