"""Per-class sampling: a dataset sorted by class, held where the work runs."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset.draws import subsets
from condenset.types import ImageData


class ClassStore:
    """The images of a dataset in class order on one device, still uint8; batches are normalised as they are drawn."""

    def __init__(self, data: ImageData, device: torch.device) -> None:
        order = torch.argsort(data.labels, stable=True)
        in_order = bool((order == torch.arange(len(order))).all())  # as imported sets are: no copy of a mapped file
        self.images_NCHW = (data.images if in_order else data.images[order]).to(device)
        counts = torch.tensor(data.class_counts)
        self.counts = counts.to(device)
        self.offsets = (torch.cumsum(counts, 0) - counts).to(device)
        self.max_count = max(data.class_counts)
        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (data.mean, data.std))
        self._scale_C11, self._shift_C11 = 1 / (255 * std), -mean / std

    def sample(self, key: Tensor, step: int | Tensor, classes_K: Tensor, num: int) -> Tensor:
        """(K, num, C, H, W) float32 images, normalised: of each class `num` drawn without replacement.

        A class with fewer has all of its own first; what follows is padding.
        """
        chosen = subsets(key, step, classes_K, self.counts[classes_K], self.max_count, num)
        return self.normalised(self.images_NCHW[self.offsets[classes_K, None] + chosen])

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 pixels as networks expect them."""
        return images.float() * self._scale_C11 + self._shift_C11
