"""What a reader gives: two splits whose pixels are still to be fetched, block by block, in class order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from condenset.errors import UserError
from condenset.progress import progress_bar
from condenset.types import ImageData, Splits, constants

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]

BLOCK_BYTES = 32 << 20
HELD_OUT = "every fifth image of a class is held out for the test"


@dataclass(frozen=True)
class Part:
    """One split, sorted by class: `fill(out, start)` writes the images start..start+len(out) into `out`.

    shape: (N, C, H, W); labels: (N,), ascending.
    """

    shape: tuple[int, int, int, int]
    labels: Labels
    fill: Callable[[Pixels, int], None]


@dataclass(frozen=True)
class Raw:
    """A dataset as a reader found it; mean and std are measured on train where they are not known."""

    train: Part
    test: Part
    class_names: tuple[str, ...]
    source: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    can_flip: bool = True

    def __post_init__(self) -> None:
        for split, part in (("train", self.train), ("test", self.test)):
            check_labels(part.labels, self.class_names, f"{self.source}: the {split} split")
        if self.train.shape[1:] != self.test.shape[1:]:
            shapes = (f"{c}x{h}x{w}" for c, h, w in (self.train.shape[1:], self.test.shape[1:]))
            raise UserError(
                f"{self.source}: train and test images must be of one shape, but got {' and '.join(shapes)}"
            )


class PixelStats:
    """Mean and standard deviation of each channel, exact: it counts how often each of the 256 values occurs."""

    def __init__(self, channels: int) -> None:
        self.counts = torch.zeros(channels, 256, dtype=torch.int64)

    def add(self, block: Pixels | torch.Tensor) -> None:
        """Count the pixels of (N, C, H, W) uint8 images."""
        images = torch.from_numpy(block) if isinstance(block, np.ndarray) else block
        for counts, channel in zip(self.counts, images.unbind(1), strict=True):
            counts += torch.bincount(channel.flatten(), minlength=256)

    def result(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, std) of pixels in 0..1; std is at least 1/255, so that a constant channel can be divided by it."""
        means, stds = [], []
        for counts in self.counts.tolist():
            total = max(sum(counts), 1)
            first = sum(value * count for value, count in enumerate(counts))
            second = sum(value * value * count for value, count in enumerate(counts))
            means.append(first / total / 255)
            stds.append(max(math.sqrt(total * second - first * first) / total, 1.0) / 255)
        return tuple(means), tuple(stds)


def measure(images: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) per channel of uint8 images (N, C, H, W), a block at a time."""
    stats = PixelStats(images.shape[1])
    step = block_rows(images.shape)
    for start in range(0, len(images), step):
        stats.add(images[start : start + step])
    return stats.result()


def check_labels(labels: Labels, class_names: Sequence[str], where: str) -> None:
    """Refuse labels outside the classes, and classes without an image."""
    num_classes = len(class_names)
    if len(labels) == 0:
        raise UserError(f"{where} holds no image")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise UserError(f"{where}: labels must lie in 0..{num_classes - 1}, but got {low if low < 0 else high}")
    empty = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if len(empty):
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise UserError(f"{where} has an empty class: no image of {class_names[empty[0]]!r}{more}")


def array_part(images: Pixels, labels: Labels, rows: Rows | None = None) -> Part:
    """The split of (N, C, H, W) images in memory, or of some rows of them; it sorts as it copies."""
    chosen = np.arange(len(labels)) if rows is None else rows
    order = chosen[np.argsort(labels[chosen], kind="stable")]

    def fill(out: Pixels, start: int) -> None:
        out[...] = images[order[start : start + len(out)]]

    _, channels, height, width = images.shape
    return Part((len(order), channels, height, width), labels[order], fill)


def hold_out(labels: Labels, class_names: Sequence[str], where: str) -> tuple[Rows, Rows]:
    """Rows for (train, test): of every class the first image and each fifth after it go to the test."""
    check_labels(labels, class_names, where)
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=len(class_names))
    if counts.min() < 2:
        name = class_names[int(counts.argmin())]
        raise UserError(
            f"{where}: class {name!r} has one image, so none can be held out for the test; add a test split"
        )
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_test = rank % 5 == 0
    return np.sort(order[~is_test]), np.sort(order[is_test])


def block_rows(shape: Sequence[int]) -> int:
    """How many images of (N, C, H, W) make a block."""
    return max(1, BLOCK_BYTES // max(1, math.prod(shape[1:])))


def blocks(part: Part, text: str, out: Pixels | None = None) -> Iterator[Pixels]:
    """The pixels of a split in order, block by block: views of `out`, or of one buffer that is used again."""
    step = block_rows(part.shape)
    buffer = np.empty((min(step, part.shape[0]), *part.shape[1:]), np.uint8) if out is None else out
    with progress_bar(text, part.shape[0], "images") as advance:
        for start in range(0, part.shape[0], step):
            stop = min(start + step, part.shape[0])
            block = buffer[: stop - start] if out is None else out[start:stop]
            part.fill(block, start)
            advance(stop - start)
            yield block


def read_into_memory(part: Part, text: str) -> torch.Tensor:
    """All pixels of a split as one (N, C, H, W) uint8 tensor."""
    try:
        images = np.empty(part.shape, np.uint8)
    except (MemoryError, ValueError):  # ValueError: more bytes than an index can count
        need = f"{math.prod(part.shape) / 2**30:.0f} GiB"
        raise UserError(f"{text} needs {need} of memory; 'condenset data import' keeps the images on disk") from None
    for _ in blocks(part, text, images):
        pass
    return torch.from_numpy(images)


def image_data(
    images: torch.Tensor,
    labels: Labels,
    class_names: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    name: str,
    source: str,
    can_flip: bool,
) -> ImageData:
    """ImageData of a split in memory; a mean or std that is not given is measured."""
    if mean is None or std is None:
        measured = measure(images)
        mean, std = measured[0] if mean is None else mean, measured[1] if std is None else std
    return ImageData(
        images=images,
        labels=torch.from_numpy(labels),
        class_names=tuple(class_names),
        mean=constants("mean", mean),
        std=constants("std", std),
        name=name,
        source=source,
        can_flip=can_flip,
    )


def read_splits(raw: Raw, name: str) -> Splits:
    """Read both splits into memory; mean and std are train's in both."""
    images = read_into_memory(raw.train, f"reading {name}")
    train = image_data(images, raw.train.labels, raw.class_names, raw.mean, raw.std, name, raw.source, raw.can_flip)
    images = read_into_memory(raw.test, f"reading {name} (test)")
    labels = torch.from_numpy(raw.test.labels)
    return Splits(train=train, test=dataclasses.replace(train, images=images, labels=labels))
