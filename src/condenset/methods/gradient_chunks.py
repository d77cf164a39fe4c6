"""Split the classes of a gradient-matching run into chunks that bound the memory.

Shapes: K classes, B real and I synthetic images per class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from condenset.engine.memory import split_evenly
from condenset.methods.common import mean_weights


class Chunk(NamedTuple):
    """Classes that pass through the network together."""

    classes_K: Tensor
    rows: slice  # of the synthetic images
    index_KI: Tensor | None  # positions in `rows`; padding repeats the first image of a class. None: no padding
    real_weight_KB: Tensor  # weight of each real image in the mean loss of its class, 0 for padding
    synthetic_weight_KI: Tensor  # the same for synthetic images


def split_classes(
    class_counts: Sequence[int], counts: list[int], batch_size: int, max_classes: int, device: torch.device
) -> list[Chunk]:
    """Split the classes into chunks of at most `max_classes`.

    Args:
        class_counts: Real images of each class.
        counts: Synthetic images of each class.
        batch_size: Real images per class and step.
        max_classes: The largest number of classes in a chunk.
        device: The device of the tensors.
    """
    width, count_K1 = max(counts), torch.tensor(counts)[:, None]
    real_weight_KB = mean_weights([min(batch_size, count) for count in class_counts], batch_size).to(device)
    synthetic_weight_KI = mean_weights(counts, width).to(device)
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
