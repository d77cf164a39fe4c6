"""Distribution matching (Zhao and Bilen, WACV 2023): Algorithm 1 of the paper.

Learn synthetic images whose mean embedding equals that of the real images, class by class, in the embedding of randomly
sampled networks and under one augmentation shared by real and synthetic images.
Shapes: K classes, B real and I synthetic images per class, F features, U uniform numbers.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import default_memory_limit
from condenset.errors import check
from condenset.io.user_directories import absolute_path
from condenset.methods.common import record_loss
from condenset.methods.matching.matcher import (
    Matcher,
    check_batch_norm_memory,
    estimate_matching_memory,
    peak_memory,
)
from condenset.methods.matching.objectives import mean_distance
from condenset.methods.matching.pool import NetworkPool, parse_accuracy_range
from condenset.methods.matching.sets import Chunk
from condenset.methods.recipe import TINY_NETWORK, MatchingRecipe
from condenset.methods.registry import Method
from condenset.methods.samplers import NetworkSampler, PoolNetworks, build_on_meta, make_forward, sample_new_networks
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK


@dataclass(frozen=True, kw_only=True)
class DMRecipe(MatchingRecipe):
    """Settings of distribution matching.

    Attributes:
        pool: Directory of a pool of trained networks to sample from. Empty: a random network in every iteration.
        group: Networks of the pool to use, by validation accuracy in percent, such as "60-70", or "all".

    Further fields: `network`, `iterations`, `lr`, `momentum`, `batch_size`, `init` and `augment` (see
    `MatchingRecipe`); `ipc` and `allow_fewer` (see `Recipe`).

    Example:
        >>> import condenset as cs
        >>> digits = cs.load("digits", verbose=False)
        >>> recipe = cs.DMRecipe(ipc=1, network="convnet(width=8, depth=1)", iterations=2)
        >>> len(cs.condense(digits.train, recipe, device="cpu", verbose=False))
        10
    """

    pool: str = ""
    group: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_accuracy_range(self.group)
        check(bool(self.pool) or self.group == "all", "group must come with the pool that it selects from", self.group)
        if self.pool:  # absolute, because a run may be resumed from another directory
            object.__setattr__(self, "pool", absolute_path(self.pool))

    def identity(self) -> dict[str, Any]:
        """Return the settings with the fingerprint of the pool in place of its path."""
        pool = NetworkPool.load(self.pool).fingerprint if self.pool else ""
        return super().identity() | {"pool": pool}


class DistributionMatching(Matcher):
    """Algorithm 1: the step of distribution matching. Matcher has the state, the chunks and the loop around it."""

    def step(self) -> None:
        """Run one iteration for all classes: sample a network, then match class by class."""
        network = self.networks.sample(self.clock, self.dtype)
        total_loss = torch.zeros((), device=self.clock.device)
        for chunk in self.chunks:  # the loss is a sum over classes, so chunks do not change the result
            total_loss += self.match(network, chunk)
        record_loss(self.clock, self.losses, total_loss)

    def match(self, network: dict[str, Tensor], chunk: Chunk) -> Tensor:
        """Update the synthetic images of a chunk of classes, and return their loss before the update."""
        transform = self.sample_augmentation(chunk)  # one per class, shared by real and synthetic images
        real_KBF = self.embed_real(network, self.sample_real(chunk, transform), chunk)
        loss = torch.zeros((), device=self.clock.device)
        for group in self.sets.groups:  # one group, unless batch norm keeps sets of several sizes apart
            images_KICHW = self.sets.images(chunk, group)
            synthetic_KIF = self.embed_synthetic(network, self.augment(images_KICHW, transform), chunk, group)
            distance = self.distance(real_KBF, synthetic_KIF, chunk, group)
            (gradient,) = torch.autograd.grad(distance, images_KICHW)
            self.sets.update(chunk, group, gradient)
            loss += distance.detach()
        return loss


def condense(data: ImageData, recipe: DMRecipe, run: RunContext) -> CondensedSet:
    """Condense a dataset by distribution matching."""
    run.compute.reset_peak_memory()
    return make_problem(data, [recipe], run).solve()[0]


def condense_sizes(data: ImageData, recipes: Sequence[DMRecipe], run: RunContext) -> list[CondensedSet]:
    """Learn sets of several sizes at once: real images, most of the work, pass through each network once for all sets.

    Each set is what it would be alone, up to rounding: it sees the same networks, real images and augmentations.
    """
    run.compute.reset_peak_memory()
    return make_problem(data, recipes, run).solve()


def make_problem(data: ImageData, recipes: Sequence[DMRecipe], run: RunContext) -> DistributionMatching:
    """Return the initial state of a run that learns one set per recipe."""
    recipe, compute = recipes[0], run.compute
    network = build_on_meta(recipe.network, data, embedding=True)
    sampler, pool_bytes, provenance = make_sampler(recipe, data, network, run)
    forward, dtype = make_forward(network, sampler, compute)
    problem = DistributionMatching(
        data,
        recipes,
        run,
        network=network,
        forward=forward,
        sampler=sampler,
        objective=mean_distance,
        stages=augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip),
        dtype=dtype,
        memory=estimate_matching_memory(network, data, recipes, compute, pool_bytes=pool_bytes),
    )
    problem.provenance = provenance
    return problem


def make_sampler(
    recipe: DMRecipe, data: ImageData, network: nn.Module, run: RunContext
) -> tuple[NetworkSampler, int, dict[str, Any]]:
    """Return where networks come from, the bytes that a pool takes, and what provenance records of the pool."""
    if not recipe.pool:
        return sample_new_networks(recipe.network, data, run.seed, run.compute, embedding=True), 0, {}
    pool = NetworkPool.load(recipe.pool)
    pool.check_compatible(recipe.network, data)
    weights_GP = pool.weights(recipe.group, network, run.compute)
    entry = {"fingerprint": pool.fingerprint, "group": recipe.group, "networks": len(weights_GP)}
    return PoolNetworks(network, weights_GP, run.seed), weights_GP.nbytes, {"pool": entry}


def can_share(recipe: DMRecipe, other: DMRecipe) -> bool:
    """Return whether `condense_sizes` can learn the sets of both recipes at once."""
    return dataclasses.replace(other, ipc=recipe.ipc, lr=recipe.lr, allow_fewer=recipe.allow_fewer) == recipe


def num_that_fit(data: ImageData, recipes: Sequence[DMRecipe], run: RunContext) -> int:
    """Return how many of the recipes, counted from the first, can be learned at once within the memory limit."""
    network = build_on_meta(recipes[0].network, data, embedding=True)
    limit = default_memory_limit(run.compute, run.memory_limit)
    num_classes = data.num_classes if networks.uses_batch_norm(network) else 1
    estimates = (
        estimate_matching_memory(network, data, recipes[:num], run.compute) for num in range(2, len(recipes) + 1)
    )
    return 1 + sum(limit is None or estimate.total(num_classes) <= limit for estimate in estimates)


def estimate_memory(data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that a run needs, without those of a pool."""
    network = build_on_meta(recipe.network, data, embedding=True)
    memory = estimate_matching_memory(network, data, [recipe], compute)
    if networks.uses_batch_norm(network):
        return memory.total(data.num_classes)
    return peak_memory(memory, data.num_classes, compute, memory_limit)


def check_recipe(data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None) -> None:
    """Refuse a pool that does not fit the data, and a memory limit that batch norm cannot meet."""
    network = build_on_meta(recipe.network, data, embedding=True)
    if memory_limit is not None and networks.uses_batch_norm(network):
        memory = estimate_matching_memory(network, data, [recipe], compute)
        check_batch_norm_memory(memory, data.num_classes, memory_limit)
    if recipe.pool:
        pool = NetworkPool.load(recipe.pool)
        with warnings.catch_warnings(action="ignore"):  # the pool warns when it is used
            pool.check_compatible(recipe.network, data)
        pool.check_group(recipe.group)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's settings for large images, and quick settings for the digits."""
    if (dataset, size) == DIGITS:
        return {"iterations": 500, "batch_size": 64, "network": DIGITS_NETWORK}
    return {"iterations": 10_000} if size >= 64 else {}


METHOD = Method(
    name="dm",
    recipe=DMRecipe,
    condense=condense,
    summary="Distribution matching: learn images whose mean embedding in random networks equals the class mean.",
    presets=presets,
    ipc_defaults=lambda ipc: {"lr": 10.0 if ipc >= 100 else 1.0},  # larger sets have a smaller loss
    tiny={"network": TINY_NETWORK, "iterations": 5, "batch_size": 32},
    check=check_recipe,
    condense_sizes=condense_sizes,
    can_share=can_share,
    estimate_memory=estimate_memory,
    num_that_fit=num_that_fit,
    supports_snapshots=True,
)
