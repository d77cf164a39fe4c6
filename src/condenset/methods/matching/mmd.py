"""MMD in pixel space: distribution matching of raw pixels, without network or augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from condenset.config import check_momentum_field
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.compile import functional_forward
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import MemoryEstimate, num_classes_that_fit, peak_memory
from condenset.errors import check_choice
from condenset.methods.common import max_images_per_class
from condenset.methods.matching.dm import DistributionMatching
from condenset.methods.matching.memory import estimate_matching_memory
from condenset.methods.matching.objectives import estimate_objective_memory, parse_objective
from condenset.methods.matching.user_functions import explain_own_function
from condenset.methods.recipe import INITS, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.samplers import NoNetworks
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS


@dataclass(frozen=True, kw_only=True)
class MMDRecipe(Recipe):
    """Settings of MMD in pixel space.

    Attributes:
        objective: Distance of the pixels: "mean", which is the MMD of the linear kernel, or another objective of dm.
            Others need another learning rate.
        iterations: Number of iterations.
        lr: Learning rate of the images. At 1, a single image per class would follow the mean of each batch.
        momentum: Momentum of the images.
        batch_size: Real images per class and iteration.
        init: Start from "real" images or from "noise".
    """

    removed_fields: ClassVar[Mapping[str, object]] = {"kernel": "linear", "bandwidth": 0.0}

    objective: str = "mean"
    iterations: int = 20_000
    lr: float = 0.1
    momentum: float = 0.5
    batch_size: int = 256
    init: str = "real"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        parse_objective(self.objective)
        check_momentum_field(self)
        check_choice("init", self.init, INITS)


def condense(data: ImageData, recipe: MMDRecipe, run: RunContext) -> CondensedSet:
    """Match raw pixels (Gretton et al., JMLR 2012), the paper's ablation of embedding and augmentation."""
    run.compute.reset_peak_memory()
    return make_problem(data, recipe, run).solve()[0]


def make_problem(data: ImageData, recipe: MMDRecipe, run: RunContext) -> DistributionMatching:
    """Return the initial state of a run; pixels are always float32."""
    network, compute = nn.Flatten(), ComputeDevice(run.compute.device, torch.float32)
    return DistributionMatching(
        data,
        [recipe],
        run,
        network=network,
        forward=functional_forward(network, compute),
        sampler=NoNetworks(),
        stages=(),
        dtype=torch.float32,
        memory=_matching_memory(data, recipe, compute, run.memory_limit),
    )


def estimate_memory(data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that a run needs."""
    compute = ComputeDevice(compute.device, torch.float32)
    memory = _matching_memory(data, recipe, compute, memory_limit)
    return peak_memory(memory, data.num_classes, compute, memory_limit)


def classes_per_chunk(data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return how many classes are computed at once."""
    compute = ComputeDevice(compute.device, torch.float32)
    return num_classes_that_fit(_matching_memory(data, recipe, compute, memory_limit), compute, memory_limit)


def _matching_memory(
    data: ImageData, recipe: MMDRecipe, compute: ComputeDevice, memory_limit: int | None
) -> MemoryEstimate:
    objective = estimate_objective_memory(
        recipe.objective,
        num_real=min(recipe.batch_size, data.largest_class),
        num_synthetic=max_images_per_class(data, recipe),
        num_features=data.images[0].numel(),
    )
    return estimate_matching_memory(
        nn.Flatten(), data, [recipe], compute, memory_limit=memory_limit, objective=objective
    )


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return fewer iterations for large images, and quick settings for the digits."""
    if (dataset, size) == DIGITS:
        return {"iterations": 2_000, "batch_size": 64}
    return {"iterations": 10_000} if size >= 64 else {}


METHOD = Method(
    name="mmd",
    recipe=MMDRecipe,
    condense=condense,
    summary="Match the mean pixels of real and synthetic images, without network or augmentation.",
    presets=presets,
    tiny={"iterations": 5, "batch_size": 32},
    estimate_memory=estimate_memory,
    classes_per_chunk=classes_per_chunk,
    class_dependence=explain_own_function,
    supports_snapshots=True,
    streams_images=True,
)
