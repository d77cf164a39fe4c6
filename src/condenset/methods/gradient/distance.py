"""Distances of the gradients of real and synthetic images.

Shapes: K classes; the gradient of a weight is a matrix of R rows, one per output, and C columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

EPSILON = 1e-6  # added to the product of two norms, so that a row without gradient has distance 1

Gradients = Mapping[str, Tensor]


def row_distance(real: Gradients, synthetic: Gradients) -> Tensor:
    """Return (K,) sums of 1 - cosine over the rows of all weights; gradients by name have shape (K, rows, columns)."""
    total = torch.zeros((), device=next(iter(real.values())).device)
    for name, real_KRC in real.items():
        synthetic_KRC = synthetic[name]
        norms_KR = torch.linalg.vector_norm(real_KRC, dim=2) * torch.linalg.vector_norm(synthetic_KRC, dim=2)
        total = total + (1 - (real_KRC * synthetic_KRC).sum(2) / (norms_KR + EPSILON)).sum(1)
    return total


def squared_distance(real: Gradients, synthetic: Gradients) -> Tensor:
    """Return (K,) sums of the squared differences of all weights."""
    return torch.stack([(real_KRC - synthetic[name]).square().sum((1, 2)) for name, real_KRC in real.items()]).sum(0)
