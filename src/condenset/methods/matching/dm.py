"""Distribution matching (Zhao and Bilen, WACV 2023): Algorithm 1 of the paper.

Learn synthetic images whose mean embedding equals that of the real images, class by class, in the embedding of randomly
sampled networks and under one augmentation shared by real and synthetic images.
Shapes: K classes, B real and I synthetic images per class, F features, U uniform numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from condenset import augment, networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import (
    MemoryEstimate,
    check_single_pass_memory,
    count_features,
    default_memory_limit,
    num_classes_that_fit,
    peak_memory,
)
from condenset.methods.common import default_partition, max_images_per_class
from condenset.methods.matching.matcher import Matcher
from condenset.methods.matching.memory import estimate_matching_memory
from condenset.methods.matching.network_source import (
    check_network_source,
    estimate_network_bytes,
    make_network_source,
    prepare_networks,
)
from condenset.methods.matching.objectives import estimate_objective_memory
from condenset.methods.matching.recipe import POOL_SAMPLERS, DMRecipe
from condenset.methods.matching.sets import Chunk
from condenset.methods.matching.user_functions import explain_own_function
from condenset.methods.pools.pool_training import check_pool_memory
from condenset.methods.recipe import TINY_NETWORK
from condenset.methods.registry import Method, Presets, no_presets
from condenset.methods.samplers import build_on_meta, make_forward
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK


class DistributionMatching(Matcher):
    """Algorithm 1: match a chunk of classes. Matcher has the state, the step over all chunks and the loop around it."""

    def match(self, network: dict[str, Tensor], classifier: dict[str, Tensor] | None, chunk: Chunk) -> Tensor:
        """Update the synthetic images of a chunk of classes, and return their loss before the update."""
        transform = self.sample_augmentation(chunk)  # one per class, shared by real and synthetic images
        real_KBF = self.embed_real(network, self.sample_real(chunk, transform), chunk)
        images_KICHW = self.sets.images(chunk)
        augmented_KICHW = self.augment(self.sets.decode(images_KICHW), transform)
        synthetic_KIF = self.embed_synthetic(network, augmented_KICHW, chunk)
        loss = self.distance(real_KBF, synthetic_KIF, chunk)
        if classifier is not None:
            loss = loss + self.calibrate(classifier, augmented_KICHW, chunk)
        (gradient,) = torch.autograd.grad(loss, images_KICHW)
        self.sets.update(chunk, gradient, self.clock)
        return loss.detach()


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
    recipe.layout.check_shape(data.channels, data.size)
    source = make_network_source(recipe, data, run)
    if source.embed is not None and source.network is not None:
        network, forward, dtype = source.network, source.embed, torch.float32  # of a user's sampler
    else:
        network = _build_embedding(recipe, data)
        forward, dtype = make_forward(network, source.sampler, compute)
    return DistributionMatching(
        data,
        recipes,
        run,
        network=network,
        forward=forward,
        sampler=source.sampler,
        classify=source.classify,
        calibration=recipe.calibration,
        parametrization=recipe.parametrization,
        stages=augment.parse_strategy(recipe.augment, allow_hflip=data.allow_hflip),
        dtype=dtype,
        memory=_estimate_memory(network, data, recipes, compute, run.memory_limit),
        provenance=source.provenance,
    )


def _build_embedding(recipe: DMRecipe, data: ImageData) -> nn.Module:
    """Build the network of a recipe without classifier and without values."""
    return build_on_meta(recipe.network, data, embedding=True, features=recipe.features)


def _estimate_memory(
    network: nn.Module,
    data: ImageData,
    recipes: Sequence[DMRecipe],
    compute: ComputeDevice,
    memory_limit: int | None,
) -> MemoryEstimate:
    """Estimate the memory of recipes that differ in their size alone; the calibration is a second pass."""
    recipe = recipes[0]
    decoded = [recipe.layout.num_parts * max_images_per_class(data, size_recipe) for size_recipe in recipes]
    calibrated = [min(recipe.calibration_images or num, num) for num in decoded] if recipe.calibration else []
    return estimate_matching_memory(
        network,
        data,
        recipes,
        compute,
        memory_limit=memory_limit,
        objective=_estimate_objective(network, data, recipes),
        network_bytes=estimate_network_bytes(recipe, data, compute),
        synthetic_per_class=sum(decoded) + sum(calibrated),
    )


def _estimate_objective(network: nn.Module, data: ImageData, recipes: Sequence[DMRecipe]) -> MemoryEstimate:
    """Estimate the memory of the objective, which all sets need at once."""
    recipe, num_real = recipes[0], min(recipes[0].batch_size, data.largest_class)
    num_features = count_features(network, (data.channels, data.size, data.size))
    estimates = [
        estimate_objective_memory(
            recipe.objective,
            num_real=num_real,
            num_synthetic=recipe.layout.num_parts * max_images_per_class(data, size_recipe),
            num_features=num_features,
        )
        for size_recipe in recipes
    ]
    return MemoryEstimate(estimates[0].fixed_bytes, sum(estimate.bytes_per_class for estimate in estimates))


def can_share(recipe: DMRecipe, other: DMRecipe) -> bool:
    """Return whether `condense_sizes` can learn the sets of both recipes at once.

    The queue trains on one set. Batch norm would mix the sets, and the user's own networks may contain it.
    """
    is_built_in = recipe.sampler in ("random", *POOL_SAMPLERS) and networks.has_default_init(recipe.network)
    if not is_built_in or networks.uses_batch_norm(recipe.network):
        return False
    return dataclasses.replace(other, ipc=recipe.ipc, lr=recipe.lr, allow_fewer=recipe.allow_fewer) == recipe


def num_that_fit(data: ImageData, recipes: Sequence[DMRecipe], run: RunContext) -> int:
    """Return how many of the recipes, counted from the first, can be learned at once within the memory limit."""
    network = _build_embedding(recipes[0], data)
    limit = default_memory_limit(run.compute, run.memory_limit)
    estimates = (
        _estimate_memory(network, data, recipes[:num], run.compute, run.memory_limit)
        for num in range(2, len(recipes) + 1)
    )
    return 1 + sum(limit is None or estimate.total(num_classes=1) <= limit for estimate in estimates)


def estimate_memory(data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that a run needs."""
    network = _build_embedding(recipe, data)
    memory = _estimate_memory(network, data, [recipe], compute, memory_limit)
    if networks.uses_batch_norm(network):
        return memory.total(data.num_classes)
    return peak_memory(memory, data.num_classes, compute, memory_limit)


def classes_per_chunk(data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return how many classes pass through the network at once, without a pool: all with batch norm, else what fits."""
    network = _build_embedding(recipe, data)
    if networks.uses_batch_norm(network):
        return data.num_classes
    memory = _estimate_memory(network, data, [recipe], compute, memory_limit)
    return num_classes_that_fit(memory, compute, memory_limit)


def check_recipe(data: ImageData, recipe: DMRecipe, compute: ComputeDevice, memory_limit: int | None) -> None:
    """Refuse what cannot succeed: another size or pool, or a memory limit that batch norm cannot meet."""
    network = _build_embedding(recipe, data)
    recipe.layout.check_shape(data.channels, data.size)
    check_network_source(recipe, data)
    if memory_limit is not None and networks.uses_batch_norm(network):
        memory = _estimate_memory(network, data, [recipe], compute, memory_limit)
        check_single_pass_memory("batch norm", memory, data.num_classes, memory_limit)
    if recipe.sampler in POOL_SAMPLERS and not recipe.has_pool:
        check_pool_memory(data, compute, memory_limit, zca=recipe.zca)


def class_dependence(recipe: DMRecipe) -> str:
    """Return why the classes cannot be condensed separately, or on other machines."""
    if recipe.sampler == "queue":
        return "its networks train on the synthetic images of all classes"
    if reason := explain_own_function(recipe):
        return reason
    if not networks.has_default_init(recipe.network):
        return f"workers do not have your own network {recipe.network!r}"
    return "batch norm mixes the classes" if networks.uses_batch_norm(recipe.network) else ""


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's settings for large sets and images, and quick settings for the digits."""
    lr = 10.0 if ipc >= 100 else 1.0  # larger sets have a smaller loss
    if (dataset, size) == DIGITS:
        quick = {"batch_size": 64, "network": DIGITS_NETWORK, "pool_size": 3, "pool_epochs": 10}
        return {"lr": lr, "iterations": _digits_iterations(ipc), **quick}
    return {"lr": lr, "iterations": 10_000} if size >= 64 else {"lr": lr}


def fast_schedule(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the settings that reach the paper's accuracy soonest.

    A high learning rate needs few iterations, and the mean of the images over the second half removes its noise. The
    values were chosen on training images that were held out; see docs/results/schedules.md.
    """
    if (dataset, size) == DIGITS:
        lr = float(ipc) if ipc <= 10 else 0.4 * ipc
        return {"iterations": _digits_iterations(ipc), "lr": lr, "average": 0.5}
    lr = max(1.0, min(ipc / 2, 5.0), ipc / 5)  # larger sets have a smaller loss
    return {"iterations": 1_400 if size >= 64 else 3_000, "lr": lr, "average": 0.5}


def paper_schedule(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return more iterations for the digits. For other datasets, the presets are the settings of the paper."""
    return {"iterations": 500} if (dataset, size) == DIGITS else {}


def digits_calibration(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return less calibration for the digits than for photos."""
    return {"calibration": 0.1} if (dataset, size) == DIGITS else {}


def _digits_iterations(ipc: int) -> int:
    """Return the iterations of the quick settings for the digits."""
    return 100 if ipc <= 10 else 200


METHOD = Method(
    name="dm",
    recipe=DMRecipe,
    condense=condense,
    summary="Distribution matching: learn images whose mean embedding in random networks equals the class mean.",
    source="Zhao and Bilen, WACV 2023",
    presets=presets,
    schedules={"fast": fast_schedule, "paper": paper_schedule},
    tiny={"network": TINY_NETWORK, "iterations": 5, "batch_size": 32, "pool_size": 1, "pool_epochs": 1},
    check=check_recipe,
    condense_sizes=condense_sizes,
    can_share=can_share,
    estimate_memory=estimate_memory,
    classes_per_chunk=classes_per_chunk,
    num_that_fit=num_that_fit,
    class_dependence=class_dependence,
    prepare=prepare_networks,
    supports_snapshots=True,
    streams_images=True,
)


def make_variant(
    name: str,
    recipe: type[DMRecipe],
    summary: str,
    *,
    source: str,
    lr_per_image: float,
    more_presets: Presets = no_presets,
    **changes: Any,
) -> Method:
    """Return a variant of dm with partitioned images.

    Args:
        name, recipe, summary, source: As in `Method`.
        lr_per_image: Learning rate per image of a class.
        more_presets: Presets beyond those of dm, the learning rate, and the partition for the image size.
        changes: Further fields of `Method` that differ from those of dm.
    """

    def variant_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
        fields = {"lr": lr_per_image * ipc, "partition": default_partition(size)}
        return {**presets(ipc, dataset, size), **fields, **more_presets(ipc, dataset, size)}

    return dataclasses.replace(
        METHOD,
        name=name,
        recipe=recipe,
        summary=summary,
        source=source,
        variant_of=METHOD.name,
        presets=variant_presets,
        schedules={},
        **changes,
    )
