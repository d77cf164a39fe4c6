"""Split the classes of a gradient-matching run into chunks that bound the memory.

Shapes: K classes, B real and I synthetic images per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.data.stores.streamed_store import stored_bytes
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import MemoryEstimate, estimate_memory, num_classes_that_fit, split_evenly
from condenset.methods.common import images_per_class, mean_weights
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.methods.samplers import build_on_meta


class Chunk(NamedTuple):
    """Classes that pass through the network together."""

    classes_K: Tensor
    rows: slice  # of the synthetic images
    index_KI: Tensor | None  # positions in `rows`; padding repeats the first image of a class. None: no padding
    real_weight_KB: Tensor  # weight of each real image in the mean loss of its class, 0 for padding
    synthetic_weight_KI: Tensor  # the same for synthetic images, after decoding

    def group_by_class(self, images_NCHW: Tensor) -> Tensor:
        """Return (K, I, C, H, W): the synthetic images of the chunk by class."""
        return (
            images_NCHW.unflatten(0, (len(self.classes_K), -1)) if self.index_KI is None else images_NCHW[self.index_KI]
        )


def classes_per_chunk(
    data: ImageData, recipe: GradientMatchingRecipe, compute: ComputeDevice, memory_limit: int | None
) -> int:
    """Return how many classes fit the memory."""
    batch_size = min(recipe.batch_size, max(data.class_counts))
    return num_classes_that_fit(estimate_pass(data, recipe, compute, batch_size), compute, memory_limit)


def estimate_pass(
    data: ImageData, recipe: GradientMatchingRecipe, compute: ComputeDevice, batch_size: int
) -> MemoryEstimate:
    """Estimate the memory of classes that pass together: `batch_size` real images of each, then the synthetic ones.

    Real images need feature maps and their gradients. Synthetic images need twice that, in float32.
    """
    ipc = max(images_per_class(data, recipe))
    float32_images = 2 * ipc * recipe.layout.num_parts * 4 * 8 // torch.finfo(compute.dtype).bits
    return estimate_memory(
        build_on_meta(recipe.network, data),
        compute,
        (data.channels, data.size, data.size),
        real_per_class=0,
        synthetic_per_class=max(batch_size, float32_images),
        custom_kernels=False,
        num_stored=len(data.images),
        stored_bytes=stored_bytes(data, zca=recipe.zca),
        num_learned=data.num_classes * ipc,
    )


def split_classes(
    class_counts: Sequence[int],
    counts: list[int],
    batch_size: int,
    max_classes: int,
    device: torch.device,
    num_parts: int = 1,
) -> list[Chunk]:
    """Split the classes into chunks of at most `max_classes`.

    Args:
        class_counts: Real images of each class.
        counts: Synthetic images of each class.
        batch_size: Real images per class and step.
        max_classes: The largest number of classes in a chunk.
        device: The device of the tensors.
        num_parts: The images that a synthetic image decodes to.
    """
    width, count_K1 = max(counts), torch.tensor(counts)[:, None]
    real_weight_KB = mean_weights([min(batch_size, count) for count in class_counts], batch_size).to(device)
    synthetic_weight_KI = mean_weights(counts, width).repeat_interleave(num_parts, 1).to(device) / num_parts
    index_KI = torch.where(torch.arange(width) < count_K1, torch.arange(width), 0)
    index_KI = index_KI + torch.cumsum(count_K1, 0) - count_K1
    chunks = []
    for classes in split_evenly(len(counts), max_classes):
        rows = slice(sum(counts[: classes.start]), sum(counts[: classes.stop]))
        classes_K = torch.arange(classes.start, classes.stop, device=device)
        has_padding = min(counts[classes]) < width
        chunk_index_KI = (index_KI[classes] - rows.start).to(device) if has_padding else None
        chunks.append(Chunk(classes_K, rows, chunk_index_KI, real_weight_KB[classes], synthetic_weight_KI[classes]))
    return chunks
