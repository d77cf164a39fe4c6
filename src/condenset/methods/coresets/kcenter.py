"""K-center: greedily cover each class in the embedding of a trained network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.methods.coresets.coreset import TINY, NetworkCoresetRecipe, coreset_presets, select_coreset
from condenset.methods.registry import Method
from condenset.runs.context import RunContext


@dataclass(frozen=True, kw_only=True)
class KCenterRecipe(NetworkCoresetRecipe):
    """Settings of k-center selection."""


def condense(data: ImageData, recipe: KCenterRecipe, run: RunContext) -> CondensedSet:
    """Select images by greedy k-center in the embedding of a trained network (Sener and Savarese, 2018)."""
    return select_coreset(data, recipe, run, lambda candidates: farthest_first(candidates.features(), candidates.num))


def farthest_first(features_NF: Tensor, num: int) -> Tensor:
    """Return (num,) positions: each image is the farthest from the selected ones (Gonzalez, 1985).

    The largest distance of an image to the selection is at most twice the optimum, whichever image comes first. The
    first is the one nearest the mean, so that a set of one image is a typical one and the result needs no random draw.
    """
    best = torch.argmin(_distances(features_NF, features_NF.mean(0)), dim=0, keepdim=True)
    gap_N = torch.full_like(features_NF[:, 0], torch.inf)  # distance to the nearest selected image
    selected = torch.zeros(num, dtype=torch.int64, device=features_NF.device)
    for position in range(num):
        if position:
            best = torch.argmax(gap_N, dim=0, keepdim=True)
        selected[position : position + 1] = best
        gap_N = torch.minimum(gap_N, _distances(features_NF, features_NF[best][0]))
        gap_N.index_fill_(0, best, -1.0)  # never select it again, even if only copies of it remain
    return selected


def _distances(features_NF: Tensor, centre_F: Tensor) -> Tensor:
    """Return (N,) distances; computed from differences, so that equal features have distance 0."""
    return torch.cdist(features_NF, centre_F[None], compute_mode="donot_use_mm_for_euclid_dist")[:, 0]


METHOD = Method(
    name="kcenter",
    recipe=KCenterRecipe,
    condense=condense,
    summary="Select real images that cover their class in the embedding of a trained network.",
    source="Sener and Savarese, ICLR 2018",
    presets=coreset_presets,
    tiny=TINY,
    is_coreset=True,
)
