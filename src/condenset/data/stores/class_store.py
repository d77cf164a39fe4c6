"""Sample batches per class from a dataset that is sorted by class and stored on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from condenset import augment, kernels
from condenset.augment import Transform
from condenset.data.image_data import ImageData
from condenset.engine.rng import sample_without_replacement
from condenset.kernels import augment as augment_kernel


class ImageBatch(NamedTuple):
    """Images on the device, and which of them form a batch."""

    images_NCHW: Tensor  # uint8, or whitened images in float32
    indices: Tensor  # of any shape, into the images


class ClassStore:
    """The images of a dataset as uint8 in class order on one device. Batches are normalised when they are taken.

    With a whitening, the images are stored whitened, as float32.
    """

    def __init__(self, data: ImageData, device: torch.device) -> None:
        self.image_shape = tuple(data.images.shape[1:])
        counts = torch.tensor(data.class_counts)
        self.counts = counts.to(device)
        self.offsets = (torch.cumsum(counts, 0) - counts).to(device)
        self.max_count = data.largest_class
        self.labels_N = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)
        self._stream_ids_K = torch.tensor(data.class_stream_ids, device=device) if data.class_stream_ids else None
        mean, std = (torch.tensor(v, device=device) for v in (data.mean, data.std))
        self._scale_C, self._shift_C = 1 / (255 * std), -mean / std
        self.whitening = data.whitening and data.whitening.to(device)  # a captured step cannot copy it
        self._store_images(data, device)

    def _store_images(self, data: ImageData, device: torch.device) -> None:
        order = class_order(data.labels)
        images_NCHW = data.images if order is None else data.images[order]
        if self.whitening is not None:  # once, because it takes longer than the normalisation
            self.images_NCHW = self.whitening.apply_in_blocks(images_NCHW, device)
            self._scale_C, self._shift_C = torch.ones_like(self._scale_C), torch.zeros_like(self._shift_C)
        else:
            self.images_NCHW = images_NCHW.to(device).contiguous()

    def stream_ids(self, classes_K: Tensor) -> Tensor:
        """Return (K,) ids of the random streams of these classes."""
        return classes_K if self._stream_ids_K is None else self._stream_ids_K[classes_K]

    def sample_class_indices(
        self, key: Tensor, step: int | Tensor, classes_K: Tensor, num: int, *, ordered: bool = True
    ) -> Tensor:
        """Sample `num` images of each class without replacement, and return their (K, num) indices.

        Args:
            key: The key of the random numbers.
            step: The step of the random numbers.
            classes_K: The classes.
            num: The number of images per class. The indices of a smaller class are followed by padding.
            ordered: Return the indices in their random order. False is faster, and returns the same indices in any
                order; every class must then have at least `num` images.
        """
        positions_KN = sample_without_replacement(
            key, step, self.stream_ids(classes_K), self.counts[classes_K], self.max_count, num, ordered=ordered
        )
        return self.offsets[classes_K, None] + positions_KN

    def sample_indices(self, key: Tensor, step: int | Tensor, num: int) -> Tensor:
        """Sample images of all classes without replacement, and return their (min(num, N),) indices."""
        total, stream = len(self.labels_N), torch.zeros(1, dtype=torch.int64, device=self.counts.device)
        return sample_without_replacement(key, step, stream, stream + total, total, min(num, total))[0]

    def batch(self, indices: Tensor) -> ImageBatch:
        """Return the images at these indices of the dataset in class order."""
        return ImageBatch(self.images_NCHW, indices)

    def take_normalized(self, indices: Tensor) -> Tensor:
        """Return the images at these indices as float32, normalised."""
        return self.normalize(self.batch(indices))

    def take_augmented(self, indices_KB: Tensor, transform: Transform, dtype: torch.dtype) -> Tensor:
        """Return (K, B, C, H, W) images at these indices, normalised, with one augmentation per class."""
        return self.augment(self.batch(indices_KB), transform, dtype)

    def normalize(self, batch: ImageBatch) -> Tensor:
        """Return the images of a batch as float32, normalised."""
        if batch.images_NCHW.dtype == torch.float32:
            return batch.images_NCHW[batch.indices]
        pixels = batch.images_NCHW[batch.indices].float()
        if self.whitening is not None:  # a batch that was read from a file
            return self.whitening.apply(pixels / 255)
        return pixels * self._scale_C[:, None, None] + self._shift_C[:, None, None]

    def augment(self, batch: ImageBatch, transform: Transform, dtype: torch.dtype) -> Tensor:
        """Return the (K, B, C, H, W) images of a batch, normalised, with one augmentation per class."""
        is_streamed = self.whitening is not None and batch.images_NCHW.dtype == torch.uint8
        if kernels.available(batch.images_NCHW) and not is_streamed:
            return augment_kernel.take_augmented(*batch, transform, self._scale_C, self._shift_C, dtype)
        return augment.apply(transform, self.normalize(batch), dtype)


def class_order(labels_N: Tensor) -> Tensor | None:
    """Return the order that sorts images by class; None if they are sorted already."""
    is_sorted = bool((labels_N[1:] >= labels_N[:-1]).all())
    return None if is_sorted else torch.argsort(labels_N, stable=True)
