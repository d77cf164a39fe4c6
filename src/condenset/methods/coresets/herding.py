"""Herding: greedily keep the mean of the selected embeddings near the class mean."""

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
class HerdingRecipe(NetworkCoresetRecipe):
    """Settings of herding."""


def condense(data: ImageData, recipe: HerdingRecipe, run: RunContext) -> CondensedSet:
    """Select images by herding in the embedding of a trained network (Welling, 2009; Rebuffi et al., 2017)."""
    return select_coreset(data, recipe, run, lambda candidates: herd(candidates.features(), candidates.num))


def herd(features_NF: Tensor, num: int) -> Tensor:
    """Return (num,) positions: each image brings the mean of the selected ones nearest the mean of all.

    With features g centred at that mean and S the sum of the selected ones, it is the image with the smallest ‖S + g‖².
    """
    centred_NF = features_NF - features_NF.mean(0)
    square_N = centred_NF.square().sum(1)
    sum_F = torch.zeros_like(centred_NF[0])
    selected = torch.zeros(num, dtype=torch.int64, device=features_NF.device)
    for position in range(num):
        best = torch.argmin(square_N + 2 * (centred_NF @ sum_F), dim=0, keepdim=True)
        selected[position : position + 1] = best
        sum_F += centred_NF[best][0]
        square_N.index_fill_(0, best, torch.inf)
    return selected


METHOD = Method(
    name="herding",
    recipe=HerdingRecipe,
    condense=condense,
    summary="Select real images whose mean embedding in a trained network stays nearest the class mean.",
    source="Rebuffi et al., CVPR 2017",
    presets=coreset_presets,
    tiny=TINY,
    is_coreset=True,
)
