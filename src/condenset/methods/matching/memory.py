"""The memory of distribution matching, and how many classes pass through the network at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from condenset import networks
from condenset.data.image_data import ImageData
from condenset.data.stores.batch_stream import NUM_BUFFERS
from condenset.data.stores.streamed_store import is_streamed, stored_bytes
from condenset.engine import cuda_graph
from condenset.engine.compile import uses_custom_kernels
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import (
    MemoryEstimate,
    check_single_pass_memory,
    estimate_memory,
    images_per_pass,
    num_classes_that_fit,
)
from condenset.errors import UserError
from condenset.methods.common import max_images_per_class
from condenset.runs.context import RunContext

NO_MEMORY = MemoryEstimate(0, 0)


def real_images_per_pass(network: nn.Module, data: ImageData, compute: ComputeDevice) -> int | None:
    """Return how many real images pass at a time: few on a CPU, all (None) on a GPU or with batch norm."""
    image = (data.channels, data.size, data.size)
    return None if networks.uses_batch_norm(network) else images_per_pass(network, compute, image)


def max_classes_per_pass(data: ImageData, run: RunContext, memory: MemoryEstimate, *, batch_norm: bool) -> int:
    """Return how many classes pass together: all with batch norm, else what fits."""
    num_classes = data.num_classes
    if batch_norm:
        if run.classes_per_chunk is not None and run.classes_per_chunk < num_classes:
            raise UserError(
                f"batch norm needs all {num_classes} classes in one pass, but got chunks of {run.classes_per_chunk}"
            )
        check_single_pass_memory("batch norm", memory, num_classes, run.memory_limit)
        return num_classes
    return run.classes_per_chunk or num_classes_that_fit(memory, run.compute, run.memory_limit)


def estimate_matching_memory(
    network: nn.Module,
    data: ImageData,
    recipes: Sequence[Any],
    compute: ComputeDevice,
    *,
    memory_limit: int | None = None,
    objective: MemoryEstimate = NO_MEMORY,
    network_bytes: int = 0,
    synthetic_per_class: int | None = None,
) -> MemoryEstimate:
    """Estimate the memory of matching with these recipes.

    Args:
        network: Maps images to features.
        data: The real images.
        recipes: One per set.
        compute: Device and precision.
        memory_limit: The bytes that the run may use. They decide whether the images are streamed.
        objective: Memory that the objective needs beyond the features.
        network_bytes: Bytes of the networks that the sampler holds.
        synthetic_per_class: Synthetic images that pass through networks, per class. None: one for each stored image.
    """
    zca, ipcs = recipes[0].zca, [max_images_per_class(data, recipe) for recipe in recipes]
    batch_size = min(recipes[0].batch_size, data.largest_class)
    estimate = estimate_memory(
        network,
        compute,
        (data.channels, data.size, data.size),
        real_per_class=batch_size,
        synthetic_per_class=sum(ipcs) if synthetic_per_class is None else synthetic_per_class,
        custom_kernels=uses_custom_kernels(network, compute),
        num_stored=len(data.images),
        stored_bytes=stored_bytes(data, zca=zca),
        num_learned=data.num_classes * sum(ipcs),
        images_per_pass=real_images_per_pass(network, data, compute),
        objective_bytes=objective.bytes_per_class,
    )
    fixed_bytes = estimate.fixed_bytes + objective.fixed_bytes + network_bytes
    if not is_streamed(data, compute, memory_limit, zca=zca):
        return MemoryEstimate(fixed_bytes, estimate.bytes_per_class)
    num_buffers = NUM_BUFFERS + cuda_graph.supports_graphs(compute.device)  # a copy for the graphs
    buffer_bytes = num_buffers * batch_size * data.images[0].numel()
    return MemoryEstimate(fixed_bytes - stored_bytes(data, zca=zca), estimate.bytes_per_class, buffer_bytes)
