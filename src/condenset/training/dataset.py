"""Datasets on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from condenset import augment, kernels
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.kernels import augment as augment_kernel
from condenset.kernels import batch as batch_kernel


@dataclass(frozen=True)
class DeviceDataset:
    """Images and labels on the device.

    Attributes:
        images_NCHW: Normalised float images, or uint8 pixels that are normalised when they are read.
        labels: (N,) class numbers, or (N, K) class probabilities.
        scale_C11: The factor that normalises the images.
        shift_C11: The summand that normalises the images.
        allow_hflip: Whether the augmentation may flip images horizontally.
        num_classes: The number of classes.
    """

    images_NCHW: Tensor
    labels: Tensor
    scale_C11: Tensor
    shift_C11: Tensor
    allow_hflip: bool
    num_classes: int

    @classmethod
    def from_data(cls, source: CondensedSet | ImageData, device: torch.device) -> DeviceDataset:
        """Copy a dataset to the device."""
        if isinstance(source, CondensedSet):
            images = source.normalized()
        elif source.whitening is not None:
            images = source.whitening.apply_in_blocks(source.images, device)
        else:
            images = source.images
        mean, std = (torch.tensor(values, device=device)[:, None, None] for values in (source.mean, source.std))
        is_normalized = images.dtype != torch.uint8
        return cls(
            images_NCHW=images.to(device).contiguous(),
            labels=source.labels.to(device),
            scale_C11=torch.ones_like(std) if is_normalized else 1 / (255 * std),
            shift_C11=torch.zeros_like(mean) if is_normalized else -mean / std,
            allow_hflip=source.allow_hflip,
            num_classes=source.num_classes,
        )

    @property
    def channels(self) -> int:
        """The number of colour channels."""
        return self.images_NCHW.shape[1]

    @property
    def size(self) -> int:
        """The height and width of the images."""
        return self.images_NCHW.shape[-1]

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, index: Tensor | slice) -> Tensor:
        """Return normalised images."""
        images = self.images_NCHW[index]
        return images.float() * self.scale_C11 + self.shift_C11 if images.dtype == torch.uint8 else images

    def take_augmented(self, index_N: Tensor, transform: augment.Transform, dtype: torch.dtype) -> Tensor:
        """Return normalised images, each with its own augmentation."""
        if kernels.available(self.images_NCHW):
            images = (self.images_NCHW, index_N[:, None])
            return augment_kernel.take_augmented(*images, transform, self.scale_C11, self.shift_C11, dtype)[:, 0]
        return augment.apply(transform, self.images(index_N)[:, None], dtype)[:, 0]


def take_batch(order: Tensor, position: Tensor, labels: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of the next images and their labels.

    Args:
        order: The order of all images in an epoch.
        position: The number of images that were taken in this epoch, (). Warm-up steps may go beyond the last image.
        labels: The labels of all images, by index.
        offsets: 0, 1, ... for each image of the batch.
    """
    if labels.ndim == 1 and kernels.available(order):
        return batch_kernel.take_batch(order, position, labels, len(offsets))
    index = order[(position + offsets).clamp(max=len(order) - 1)]
    return index, labels[index]
