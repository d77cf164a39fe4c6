"""Forgetting: select the images that a network forgets most often during training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.rng import make_key, permutation
from condenset.methods.coresets.coreset import (
    TINY,
    ClassCandidates,
    NetworkCoresetRecipe,
    coreset_presets,
    select_coreset,
)
from condenset.methods.registry import Method
from condenset.runs.context import RunContext


@dataclass(frozen=True, kw_only=True)
class ForgettingRecipe(NetworkCoresetRecipe):
    """Settings of selection by forgetting events."""


def condense(data: ImageData, recipe: ForgettingRecipe, run: RunContext) -> CondensedSet:
    """Select the images with the most forgetting events (Toneva et al., 2019); ties are broken at random."""
    key = make_key(run.seed, "forgetting", device=run.compute.device)

    def select(candidates: ClassCandidates) -> Tensor:
        order_N = permutation(key, candidates.stream_id, len(candidates.indices_N))
        return most_forgotten(candidates.network.forgetting_N[candidates.indices_N], order_N, candidates.num)

    return select_coreset(data, recipe, run, select)


def most_forgotten(counts_N: Tensor, order_N: Tensor, num: int) -> Tensor:
    """Return (num,) positions of the highest counts; equal counts are taken in the order of `order_N`."""
    return order_N[torch.argsort(counts_N[order_N], descending=True, stable=True)][:num]


METHOD = Method(
    name="forgetting",
    recipe=ForgettingRecipe,
    condense=condense,
    summary="Select real images that a network forgets most often while it trains on the whole dataset.",
    source="Toneva et al., ICLR 2019",
    presets=coreset_presets,
    tiny=TINY,
    is_coreset=True,
)
