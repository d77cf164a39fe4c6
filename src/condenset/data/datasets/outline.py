"""The shape of a dataset that does not exist yet or is not on this machine, to plan a run on it."""

from __future__ import annotations

import dataclasses
import functools
import os

import torch

from condenset.data.class_selection import take_classes
from condenset.data.datasets.sources import DATASETS
from condenset.data.image_data import ImageData, WholeDataset
from condenset.data.reading.opening import registered_name
from condenset.errors import check_int
from condenset.io.user_directories import data_directory

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


def outline_dataset(name: str, num_classes: int, per_class: int, size: int, channels: int = CHANNELS) -> DatasetOutline:
    """Return the outline of a dataset.

    Args:
        name: The name of the dataset, which presets depend on.
        num_classes: The number of classes.
        per_class: The images of each class.
        size: The image size in pixels.
        channels: 1 for grey images, 3 for colour images.
    """
    num_classes, size = check_int("classes", num_classes, 1, MAX_CLASSES), check_int("size", size, 1, MAX_SIZE)
    num_images = num_classes * check_int("images", per_class, 1, MAX_IMAGES // num_classes)
    return DatasetOutline(
        images=torch.zeros(1, channels, 1, 1, dtype=torch.uint8).expand(num_images, channels, size, size),
        labels=torch.zeros(1, dtype=torch.int64).expand(num_images),
        class_names=tuple(map(str, range(num_classes))),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        name=name,
        stored_fingerprint="outline",
    )


def outline_first_classes(data: ImageData, num_classes: int) -> ImageData:
    """Return the first classes of a dataset or of an outline, as a worker gets them."""
    if not isinstance(data, DatasetOutline):
        return take_classes(data, range(num_classes))
    num_images = num_classes * data.class_counts[0]
    return dataclasses.replace(
        data,
        images=data.images[:num_images],
        labels=data.labels[:num_images],
        class_names=data.class_names[:num_classes],
        whole=WholeDataset(class_names=data.class_names, class_counts=data.class_counts, first_class=0),
    )


def outline_missing(dataset: str | None, data_dir: str | os.PathLike[str] | None, size: int | None) -> ImageData | None:
    """Return the outline of a registered dataset that is not on this machine, else None.

    Args:
        dataset: Name or path of a dataset.
        data_dir: The directory of datasets, as for `load`.
        size: The image size in pixels. None: that of the dataset.
    """
    name = registered_name(dataset) if dataset else None
    if name is None:
        return None
    source = DATASETS[name]
    if source.is_bundled or source.locate(data_directory(data_dir)):
        return None
    channels, own_size, _ = source.shape
    return outline_dataset(name, source.num_classes, source.num_train // source.num_classes, size or own_size, channels)
