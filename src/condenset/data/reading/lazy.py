"""Datasets whose pixels are read on demand, block by block, in class order. Every reader returns a LazyDataset."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from condenset.data.image_data import ImageData, Splits, check_channel_stats
from condenset.data.reading.file_scan import FileScan
from condenset.errors import UserError, check
from condenset.io.progress import show_progress

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]

BLOCK_BYTES = 32 << 20


@dataclass(frozen=True)
class LazySplit:
    """One split, sorted by class.

    Attributes:
        shape: (N, C, H, W).
        labels: (N,), ascending.
        fill: `fill(out, rows)` writes the images at the positions `rows` into `out`.
        data: The same images, if they are in memory or memory-mapped already. They are then not read again.
    """

    shape: tuple[int, int, int, int]
    labels: Labels
    fill: Callable[[Pixels, Rows], None]
    data: ImageData | None = None

    def select(self, rows: Rows, labels: Labels | None = None) -> LazySplit:
        """Return the images at these positions, with other labels if they are given."""

        def fill(out: Pixels, positions: Rows) -> None:
            self.fill(out, rows[positions])

        return LazySplit((len(rows), *self.shape[1:]), self.labels[rows] if labels is None else labels, fill)

    def to_rgb(self) -> LazySplit:
        """Return the images with three channels; grey images have three equal ones."""
        count, channels, height, width = self.shape
        if channels == 3:
            return self

        def fill(out: Pixels, rows: Rows) -> None:
            grey = np.empty((len(out), 1, height, width), np.uint8)
            self.fill(grey, rows)
            out[...] = grey

        return LazySplit((count, 3, height, width), self.labels, fill)


@dataclass(frozen=True)
class LazyDataset:
    """A training and a test split that have not been read yet.

    Attributes:
        train: The training split.
        test: The test split. None: the dataset has none.
        class_names: K names.
        source: Where the images come from, as text.
        mean, std: Normalisation constants per channel; measured on the training images if None.
        allow_hflip: Allow horizontal flips. False for text and digits.
        scan: What its image files contain; empty for other datasets.
        used_options: The fields of `LoadOptions`, besides `size`, that it was read with.

    Raises:
        UserError: There is only one class, a label is out of range, a class has no training images, or the splits
            differ in image shape.
    """

    train: LazySplit
    test: LazySplit | None
    class_names: tuple[str, ...]
    source: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    allow_hflip: bool = True
    scan: FileScan = field(default_factory=FileScan)
    used_options: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_num_classes(self.class_names, self.source)
        _, channels, height, width = self.train.shape
        is_square = height == width and channels in (1, 3)
        check(is_square, f"{self.source}: images must be square, with 1 or 3 channels", f"{channels}x{height}x{width}")
        check_labels(self.train.labels, self.class_names, f"{self.source}: the train split")
        if self.test is None:
            return
        check_labels(self.test.labels, self.class_names, f"{self.source}: the test split", allow_empty=True)
        if self.train.shape[1:] != self.test.shape[1:]:
            shapes = (f"{c}x{h}x{w}" for c, h, w in (self.train.shape[1:], self.test.shape[1:]))
            rule = "train and test images must have the same shape"
            raise UserError(f"{self.source}: {rule}, but got {' and '.join(shapes)}")

    @property
    def splits(self) -> dict[str, LazySplit]:
        """The splits that exist, by name."""
        return {"train": self.train} | ({"test": self.test} if self.test else {})


class PixelStats:
    """The exact mean and standard deviation per channel, from counts of the 256 pixel values."""

    def __init__(self, channels: int) -> None:
        self.counts = torch.zeros(channels, 256, dtype=torch.int64)

    def add(self, block: Pixels | torch.Tensor) -> None:
        """Count the pixels of (N, C, H, W) uint8 images."""
        images = torch.from_numpy(block) if isinstance(block, np.ndarray) else block
        for counts, channel in zip(self.counts, images.unbind(1), strict=True):
            counts += torch.bincount(channel.flatten(), minlength=256)

    def result(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return (mean, std) of pixels in 0..1; std is at least 1/255 because images are divided by it."""
        means, stds = [], []
        for counts in self.counts.tolist():
            total = max(sum(counts), 1)
            value_sum = sum(value * count for value, count in enumerate(counts))
            square_sum = sum(value * value * count for value, count in enumerate(counts))
            means.append(value_sum / total / 255)
            stds.append(max(math.sqrt(total * square_sum - value_sum * value_sum) / total, 1.0) / 255)
        return tuple(means), tuple(stds)


def measure_pixels(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (mean, std) per channel of (N, C, H, W) uint8 images."""
    stats = PixelStats(images.shape[1])
    block_size = images_per_block(images.shape)
    for start in range(0, len(images), block_size):
        stats.add(images[start : start + block_size])
    return stats.result()


def check_num_classes(class_names: Sequence[str], owner: str) -> None:
    """Check that there are at least two classes.

    Args:
        class_names: K names.
        owner: What the classes belong to, for error messages.
    """
    if len(class_names) == 1:
        raise UserError(f"{owner} has one class, {class_names[0]!r}: there is nothing to classify; add another class")


def check_labels(labels: Labels, class_names: Sequence[str], owner: str, *, allow_empty: bool = False) -> None:
    """Check that labels are class indices and that every class has an image.

    Args:
        labels: (N,).
        class_names: K names.
        owner: What the labels belong to, for error messages.
        allow_empty: Accept classes without images.
    """
    num_classes = len(class_names)
    if len(labels) == 0:
        raise UserError(f"{owner} has no images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(f"{owner}: labels must be in 0..{num_classes - 1}, but got {low if low < 0 else high}")
    empty = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if len(empty) and not allow_empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UserError(f"{owner} has an empty class: no image of {class_names[empty[0]]!r}{more}")


def make_lazy_split(images: Pixels, labels: Labels, rows: Rows | None = None) -> LazySplit:
    """Make a split from (N, C, H, W) images in memory. It is sorted by class when its pixels are read.

    Args:
        images: uint8 (N, C, H, W).
        labels: int64 (N,).
        rows: The images to use; None for all.
    """
    selected = np.arange(len(labels)) if rows is None else rows
    order = selected[np.argsort(labels[selected], kind="stable")]

    def fill(out: Pixels, positions: Rows) -> None:
        np.take(images, order[positions], axis=0, out=out, mode="clip")  # other modes make a copy

    _, channels, height, width = images.shape
    return LazySplit((len(order), channels, height, width), labels[order], fill)


def images_per_block(shape: Sequence[int]) -> int:
    """Return how many images of a (N, C, H, W) array form a block."""
    return max(1, BLOCK_BYTES // max(1, math.prod(shape[1:])))


def iter_blocks(split: LazySplit, description: str, out: Pixels | None = None, *, start: int = 0) -> Iterator[Pixels]:
    """Yield the pixels of a split from image `start` on, block by block: views of `out`, or of one reused buffer."""
    num_images, block_size = split.shape[0], images_per_block(split.shape)
    buffer = np.empty((min(block_size, num_images), *split.shape[1:]), np.uint8) if out is None else out
    with show_progress(description, num_images, start) as advance:
        for first in range(start, num_images, block_size):
            stop = min(first + block_size, num_images)
            block = buffer[: stop - first] if out is None else out[first:stop]
            split.fill(block, np.arange(first, stop))
            advance(stop - first)
            yield block


def read_into_memory(split: LazySplit, description: str) -> torch.Tensor:
    """Return all pixels of a split as one (N, C, H, W) uint8 tensor."""
    try:
        images = np.empty(split.shape, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more bytes than an index can count
        size = f"{math.prod(split.shape) / 2**30:.0f} GiB"
        hint = "use 'condenset data import', which leaves the images on disk"
        raise UserError(f"{description} needs {size} of memory; {hint}") from None
    for _ in iter_blocks(split, description, images):
        pass
    return torch.from_numpy(images)


def make_image_data(
    images: torch.Tensor,
    labels: Labels,
    class_names: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    *,
    name: str,
    source: str,
    allow_hflip: bool,
) -> ImageData:
    """Return ImageData from images in memory; a mean or std that is None is measured."""
    if mean is None or std is None:
        measured = measure_pixels(images)
        mean, std = measured[0] if mean is None else mean, measured[1] if std is None else std
    return ImageData(
        images=images,
        labels=torch.from_numpy(labels),
        class_names=tuple(class_names),
        mean=check_channel_stats("mean", mean),
        std=check_channel_stats("std", std),
        name=name,
        source=source,
        allow_hflip=allow_hflip,
    )


def read_split(dataset: LazyDataset, split: LazySplit, name: str) -> ImageData:
    """Read one split of a dataset into memory, unless it is memory-mapped.

    If the dataset has no mean and std, they are measured on this split.
    """
    if split.data is not None:
        return split.data
    return make_image_data(
        read_into_memory(split, f"reading {name}"),
        split.labels,
        dataset.class_names,
        dataset.mean,
        dataset.std,
        name=name,
        source=dataset.source,
        allow_hflip=dataset.allow_hflip,
    )


def read_splits(dataset: LazyDataset, name: str) -> Splits:
    """Read the splits that are not memory-mapped into memory. Both have the mean and std of the training images."""
    train, test = read_split(dataset, dataset.train, name), dataset.test
    if test is None or test.data is not None:
        return Splits(train, None if test is None else test.data)
    images = read_into_memory(test, f"reading {name} (test)")
    labels, train_only = torch.from_numpy(test.labels), dataclasses.replace(train, stored_fingerprint="", file="")
    return Splits(train, dataclasses.replace(train_only, images=images, labels=labels, source=dataset.source))
