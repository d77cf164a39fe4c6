"""Find the real images that are most similar to synthetic ones.

Shapes: N synthetic and M real images, D pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.data.transform import to_unit_range
from condenset.report.html.content import Update, ignore_update
from condenset.runs.snapshots import MAX_SIDE, to_pixels

NUM_NEIGHBOURS = 3
MAX_REAL_BYTES = 1 << 28  # of real pixels that are compared; larger datasets are sampled
BATCH = 1024  # real images


def find_neighbours(
    images: Sequence[Tensor], labels: Sequence[Tensor], data: ImageData, update: Update = ignore_update
) -> list[Tensor]:
    """Return for every image the real images of its class with the smallest pixel distance.

    Args:
        images: (N, C, H, W) uint8 images of each set, as `to_pixels` returns them.
        labels: (N,) classes of the images of each set.
        data: The real images. Large classes are sampled at even distances.
        update: Called with the share of the classes that are complete.

    Returns:
        (N, 3) indices of real images for each set, the nearest first; -1 where a class has fewer images.
    """
    results = [torch.full((len(part), NUM_NEIGHBOURS), -1) for part in images]
    max_per_class = max(NUM_NEIGHBOURS, MAX_REAL_BYTES // (data.num_classes * data.images[0].nbytes))
    for label in range(data.num_classes):
        update(label / data.num_classes)
        positions = [(part == label).nonzero()[:, 0] for part in labels]
        if not sum(map(len, positions)):
            continue
        candidates = sample_evenly((data.labels == label).nonzero()[:, 0], max_per_class)
        queries = torch.cat([part[index] for part, index in zip(images, positions, strict=True)])
        nearest = candidates[_rank(queries, candidates, data)]
        for result, index, rows in zip(results, positions, nearest.split([len(p) for p in positions]), strict=True):
            result[index, : rows.shape[1]] = rows
    return results


def sample_evenly(indices: Tensor, num: int) -> Tensor:
    """Return at most `num` of the indices, at even distances."""
    if len(indices) <= num:
        return indices
    return indices[torch.linspace(0, len(indices) - 1, num).round().long()]


def read_pixels(data: ImageData, indices: Tensor) -> Tensor:
    """Return (M, C, H, W) real images as uint8, reduced to at most 64 pixels per side."""
    images = data.images[indices]
    return images if data.size <= MAX_SIDE else to_pixels(to_unit_range(images))


def _rank(queries: Tensor, candidates: Tensor, data: ImageData) -> Tensor:
    """Return the positions of the nearest candidates of each query, (N, up to 3)."""
    queries_ND, parts = queries.flatten(1).float(), []
    for batch in candidates.split(BATCH):
        real_MD = read_pixels(data, batch).flatten(1).float()
        # The squared distance without the norm of the query, which does not change the order.
        parts.append(torch.addmm(real_MD.square().sum(1), queries_ND, real_MD.T, alpha=-2))
    return torch.cat(parts, 1).topk(min(NUM_NEIGHBOURS, len(candidates)), largest=False).indices
