"""Objectives of distribution matching: distances between the features of real and synthetic images of a class.

Shapes: K classes, B real and I synthetic images per class, F features.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# (real_KBF, synthetic_KIF, real_weight_KB, synthetic_weight_KI) -> (K,); a weight of None means equal weights.
Objective = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


def mean_distance(
    real_KBF: Tensor,
    synthetic_KIF: Tensor,
    real_weight_KB: Tensor | None = None,
    synthetic_weight_KI: Tensor | None = None,
) -> Tensor:
    """Return (K,) squared distances of the mean features; weights sum to 1 per class."""
    difference_KF = _weighted_mean(real_KBF, real_weight_KB) - _weighted_mean(synthetic_KIF, synthetic_weight_KI)
    return difference_KF.square().sum(1)


def _weighted_mean(features_KNF: Tensor, weight_KN: Tensor | None) -> Tensor:
    if weight_KN is None:
        return features_KNF.mean(1, dtype=torch.float32)
    return (features_KNF.float() * weight_KN[:, :, None]).sum(1)
