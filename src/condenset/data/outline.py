"""The shape of a dataset that does not exist yet, to plan a run on it."""

from __future__ import annotations

import functools

import torch

from condenset.data.image_data import ImageData
from condenset.errors import check_int

CHANNELS = 3
MAX_CLASSES, MAX_IMAGES, MAX_SIZE = 2**24, 2**40, 2**14


class DatasetOutline(ImageData):
    """The shape of a dataset that does not exist yet. Its images take no memory and must not be read."""

    def __post_init__(self) -> None:
        """Skip the checks of the labels, which read them all."""

    @functools.cached_property
    def class_counts(self) -> tuple[int, ...]:
        """Number of images per class: the same for all classes."""
        return (len(self) // self.num_classes,) * self.num_classes


def outline_dataset(name: str, num_classes: int, per_class: int, size: int) -> DatasetOutline:
    """Return the outline of a dataset of colour images.

    Args:
        name: The name of the dataset, which presets depend on.
        num_classes: The number of classes.
        per_class: The images of each class.
        size: The image size in pixels.
    """
    num_classes, size = check_int("classes", num_classes, 1, MAX_CLASSES), check_int("size", size, 1, MAX_SIZE)
    num_images = num_classes * check_int("images", per_class, 1, MAX_IMAGES // num_classes)
    return DatasetOutline(
        images=torch.zeros(1, CHANNELS, 1, 1, dtype=torch.uint8).expand(num_images, CHANNELS, size, size),
        labels=torch.zeros(1, dtype=torch.int64).expand(num_images),
        class_names=tuple(map(str, range(num_classes))),
        mean=(0.5,) * CHANNELS,
        std=(0.25,) * CHANNELS,
        name=name,
        stored_fingerprint="outline",
    )
