"""Per-class sampling: a dataset sorted by class, held where the work runs."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset import augment, kernels
from condenset.augment import Transform
from condenset.draws import subsets
from condenset.kernels import augment as augment_kernel
from condenset.types import ImageData


class ClassStore:
    """The images of a dataset in class order on one device, still uint8; batches are normalised as they are drawn."""

    def __init__(self, data: ImageData, device: torch.device) -> None:
        order = torch.argsort(data.labels, stable=True)
        in_order = bool((order == torch.arange(len(order))).all())  # as imported sets are: no copy of a mapped file
        self.images_NCHW = (data.images if in_order else data.images[order]).to(device).contiguous()
        counts = torch.tensor(data.class_counts)
        self.counts = counts.to(device)
        self.offsets = (torch.cumsum(counts, 0) - counts).to(device)
        self.max_count = max(data.class_counts)
        self.labels_N = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
        self._rows_K = torch.tensor(data.class_rows, device=device) if data.class_rows else None
        mean, std = (torch.tensor(v, device=device) for v in (data.mean, data.std))
        self._scale_C, self._shift_C = 1 / (255 * std), -mean / std

    def rows(self, classes_K: Tensor) -> Tensor:
        """(K,) what random draws know these classes by."""
        return classes_K if self._rows_K is None else self._rows_K[classes_K]

    def choose(self, key: Tensor, step: int | Tensor, classes_K: Tensor, num: int, *, ordered: bool = True) -> Tensor:
        """(K, num) places of images: of each class `num` drawn without replacement.

        A class with fewer has all of its own first; what follows is padding. Without it the order may be left open.
        """
        counts_K = self.counts[classes_K]
        chosen = subsets(key, step, self.rows(classes_K), counts_K, self.max_count, num, ordered=ordered)
        return self.offsets[classes_K, None] + chosen

    def choose_any(self, key: Tensor, step: int | Tensor, num: int) -> Tensor:
        """(num or all,) places of images of any class, drawn without replacement."""
        total, row = len(self.labels_N), torch.zeros(1, dtype=torch.int64, device=self.counts.device)
        return subsets(key, step, row, row + total, total, min(num, total))[0]

    def take(self, places: Tensor) -> Tensor:
        """float32 images at these places, normalised."""
        return self.images_NCHW[places].float() * self._scale_C[:, None, None] + self._shift_C[:, None, None]

    def take_augmented(self, places_KB: Tensor, transform: Transform, dtype: torch.dtype) -> Tensor:
        """(K, B, C, H, W) images at these places, normalised, each class under its own augmentation."""
        if kernels.available(self.images_NCHW):
            return augment_kernel.sample(self.images_NCHW, places_KB, transform, self._scale_C, self._shift_C, dtype)
        return augment.apply(transform, self.take(places_KB), dtype)
