"""Sample batches per class from a dataset that is sorted by class and stored on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset import augment, kernels
from condenset.augment import Transform
from condenset.data.image_data import ImageData
from condenset.engine.rng import sample_without_replacement
from condenset.kernels import augment as augment_kernel


class ClassStore:
    """The images of a dataset as uint8 in class order on one device. Batches are normalised when they are taken."""

    def __init__(self, data: ImageData, device: torch.device) -> None:
        order = torch.argsort(data.labels, stable=True)
        is_sorted = bool((order == torch.arange(len(order))).all())  # memory-mapped files are, and need no copy
        self.images_NCHW = (data.images if is_sorted else data.images[order]).to(device).contiguous()
        counts = torch.tensor(data.class_counts)
        self.counts = counts.to(device)
        self.offsets = (torch.cumsum(counts, 0) - counts).to(device)
        self.max_count = max(data.class_counts)
        self.labels_N = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
        self._rows_K = torch.tensor(data.class_stream_ids, device=device) if data.class_stream_ids else None
        mean, std = (torch.tensor(v, device=device) for v in (data.mean, data.std))
        self._scale_C, self._shift_C = 1 / (255 * std), -mean / std

    def rows(self, classes_K: Tensor) -> Tensor:
        """Return (K,) ids under which random streams know these classes."""
        return classes_K if self._rows_K is None else self._rows_K[classes_K]

    def choose(self, key: Tensor, step: int | Tensor, classes_K: Tensor, num: int, *, ordered: bool = True) -> Tensor:
        """Return (K, num) indices of images, drawn without replacement from each class.

        A class with fewer images has all of them first, then padding. If no class needs padding, `ordered` may be
        False, which leaves the order of the draw open.
        """
        counts_K = self.counts[classes_K]
        chosen = sample_without_replacement(
            key, step, self.rows(classes_K), counts_K, self.max_count, num, ordered=ordered
        )
        return self.offsets[classes_K, None] + chosen

    def choose_any(self, key: Tensor, step: int | Tensor, num: int) -> Tensor:
        """Return (min(num, N),) indices of images of any class, drawn without replacement."""
        total, row = len(self.labels_N), torch.zeros(1, dtype=torch.int64, device=self.counts.device)
        return sample_without_replacement(key, step, row, row + total, total, min(num, total))[0]

    def take(self, indices: Tensor) -> Tensor:
        """Return the images at these indices as float32, normalised."""
        return self.images_NCHW[indices].float() * self._scale_C[:, None, None] + self._shift_C[:, None, None]

    def take_augmented(self, indices_KB: Tensor, transform: Transform, dtype: torch.dtype) -> Tensor:
        """Return (K, B, C, H, W) images at these indices, normalised, each class with its own augmentation."""
        if kernels.available(self.images_NCHW):
            return augment_kernel.sample(self.images_NCHW, indices_KB, transform, self._scale_C, self._shift_C, dtype)
        return augment.apply(transform, self.take(indices_KB), dtype)
