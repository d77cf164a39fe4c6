"""The synthetic images of a matching run: one or several sets side by side, padded to rectangular tensors.

Sets of several sizes share the real batches of every iteration. Their images are columns of one tensor. Classes that
have fewer images than the widest are padded; weights exclude the padding from every mean. With a partition, the learned
images are the stored ones, and `decode` gives the images that networks see: D of them for every stored image.
Shapes: K classes, I synthetic images per class of all sets, N images of a row, J of a class that calibrate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.data.partition import UNPARTITIONED, NormalizedParts, PartLayout, check_decoded_size
from condenset.data.stores.class_store import ClassStore
from condenset.engine.memory import split_evenly
from condenset.methods.common import (
    class_labels,
    images_per_class,
    initial_stored_images,
    max_images_per_class,
    mean_weights,
    remove_padding,
)


class PaddingMask(NamedTuple):
    """Which images of padded rows are real images of the row; None if there is no padding."""

    weight_KN: Tensor | None  # weight of each image in the mean of its class, 0 for padding
    positions: Tensor | None  # of the images in the flattened rows

    def weights(self, columns: slice) -> Tensor | None:
        """Return the weights of some columns."""
        return None if self.weight_KN is None else self.weight_KN[:, columns]


class SetSlice(NamedTuple):
    """The columns of one set."""

    recipe: Any
    counts: list[int]  # images per class
    columns: slice

    @property
    def width(self) -> int:
        """The number of columns: the images of the largest class of the set."""
        return int(self.columns.stop - self.columns.start)


class CalibrationBatches(NamedTuple):
    """The decoded images of a chunk that the calibration uses: those of a class and a set take turns.

    A class uses `num` of its `count` images in an iteration. They start in column `first`.
    """

    columns: list[slice]  # of each set
    mask: PaddingMask
    first_KJ: Tensor
    offset_KJ: Tensor
    num_KJ: Tensor
    count_KJ: Tensor

    def select(self, images_KICHW: Tensor, clock: Tensor) -> Tensor:
        """Return the (K, J, C, H, W) images of an iteration."""
        index_KJ = self.first_KJ + (clock * self.num_KJ + self.offset_KJ) % self.count_KJ
        num_rows, num_columns = images_KICHW.shape[:2]
        row_K1 = num_columns * torch.arange(num_rows, device=index_KJ.device)[:, None]
        selected = images_KICHW.flatten(0, 1).index_select(0, (row_K1 + index_KJ).flatten())
        return selected.view(*index_KJ.shape, *images_KICHW.shape[2:])


class Chunk(NamedTuple):
    """Classes that pass through the network together; chunks bound the memory."""

    rows: slice
    classes_K: Tensor
    real: PaddingMask
    synthetic: PaddingMask
    calibration: CalibrationBatches | None  # None: all images calibrate in every iteration


@dataclass(frozen=True, kw_only=True)
class Parametrization:
    """How the images are stored and updated.

    Attributes:
        layout: How a stored image holds several images.
        clamp: Clamp the pixels to 0..1 after every step, with the decoder "dct" approximately.
        average_from: The result is the mean of the images after this iteration. None: the last images.
        decay_steps: The learning rate falls linearly to 0 in this number of iterations. None: it is constant.
    """

    layout: PartLayout = UNPARTITIONED
    clamp: bool = False
    average_from: int | None = None
    decay_steps: int | None = None


class SyntheticSets:
    """The images that a matching run learns, and their velocity.

    Args:
        data: The real images.
        recipes: One per set; they differ in the number of images and the learning rate alone.
        store: The real images on the device.
        seed: Seed of the initial images.
        batch_size: Real images per class and iteration.
        parametrization: How the images are stored and updated.
    """

    def __init__(
        self,
        data: ImageData,
        recipes: Sequence[Any],
        store: ClassStore,
        seed: int,
        *,
        batch_size: int,
        parametrization: Parametrization,
    ) -> None:
        self.device, self.batch_size, self.momentum = store.counts.device, batch_size, recipes[0].momentum
        self.class_counts, self.parametrization = data.class_counts, parametrization
        self.parts = NormalizedParts(parametrization.layout, data.mean, data.std, self.device)
        self.num_parts = parametrization.layout.num_parts
        self.slices: list[SetSlice] = []
        images, start = [], 0
        for recipe in recipes:
            counts = images_per_class(data, recipe)
            bytes_per_image = 4 * data.channels * data.size**2 + 8  # float32, and a label
            check_decoded_size(sum(counts) * bytes_per_image, parametrization.layout)
            width = max_images_per_class(data, recipe)
            self.slices.append(SetSlice(recipe, counts, slice(start, start + width)))
            images.append(initial_stored_images(store, recipe.init, seed, width, self.parts))
            start += width
        self.images_KICHW = torch.cat(images, 1)
        self.velocity = torch.zeros_like(self.images_KICHW)
        self.average = self.images_KICHW.clone() if parametrization.average_from is not None else None
        self.labels_N = class_labels(self.slices[0].counts).repeat_interleave(self.num_parts).to(self.device)
        self.lr: float | Tensor = recipes[0].lr  # one per column if the sets differ
        if len({recipe.lr for recipe in recipes}) > 1:
            columns = [torch.full((s.width, 1, 1, 1), s.recipe.lr) for s in self.slices]
            self.lr = torch.cat(columns).to(self.device)

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that an update changes."""
        state = {"images": self.images_KICHW, "velocity": self.velocity}
        return state if self.average is None else state | {"average": self.average}

    @property
    def decoded_columns(self) -> list[slice]:
        """The columns of each set among the decoded images."""
        return [slice(self.num_parts * s.columns.start, self.num_parts * s.columns.stop) for s in self.slices]

    def split(self, max_classes: int, calibration_images: int = 0) -> list[Chunk]:
        """Split the classes into chunks of at most `max_classes`."""
        real_weight_KB = mean_weights([min(self.batch_size, count) for count in self.class_counts], self.batch_size)
        stored_weight_KI = torch.cat([mean_weights(s.counts, s.width) for s in self.slices], 1)
        synthetic_weight_KI = stored_weight_KI.repeat_interleave(self.num_parts, 1) / self.num_parts
        chunks = []
        for rows in split_evenly(len(self.class_counts), max_classes):
            classes_K = torch.arange(rows.start, rows.stop, device=self.device)
            real, synthetic = self._mask(real_weight_KB[rows]), self._mask(synthetic_weight_KI[rows])
            calibration = self._make_calibration_batches(rows, calibration_images) if calibration_images else None
            chunks.append(Chunk(rows, classes_K, real, synthetic, calibration))
        return chunks

    def _make_calibration_batches(self, rows: slice, num: int) -> CalibrationBatches:
        """Return how the decoded images of these classes take turns, with `num` of a class and set per iteration."""
        columns, tables, end = [], [], 0
        for set_slice, decoded in zip(self.slices, self.decoded_columns, strict=True):
            counts = [self.num_parts * count for count in set_slice.counts[rows]]
            nums = [min(num, count) for count in counts]
            width = max(nums)
            offset_KJ = torch.arange(width).expand(len(counts), -1)
            num_KJ, count_KJ = (torch.tensor(numbers)[:, None].expand(-1, width) for numbers in (nums, counts))
            first_KJ = torch.full_like(offset_KJ, decoded.start)
            tables.append((first_KJ, offset_KJ, num_KJ, count_KJ, mean_weights(nums, width)))
            columns.append(slice(end, end + width))
            end += width
        *indices, weight_KJ = (torch.cat(parts, 1) for parts in zip(*tables, strict=True))
        return CalibrationBatches(columns, self._mask(weight_KJ), *(table.to(self.device) for table in indices))

    def _mask(self, weight_KN: Tensor) -> PaddingMask:
        if bool(weight_KN.all()):
            return PaddingMask(None, None)
        weight_KN = weight_KN.to(self.device)
        return PaddingMask(weight_KN, weight_KN.flatten().nonzero()[:, 0])

    def images(self, chunk: Chunk) -> Tensor:
        """Return the images of a chunk as a leaf that gradients can be computed for."""
        return self.images_KICHW[chunk.rows].detach().clone().requires_grad_()

    def decode(self, images_KICHW: Tensor) -> Tensor:
        """Return the (K, D * I, C, H, W) images that networks see."""
        return self.parts.decode(images_KICHW)

    def update(self, chunk: Chunk, gradient: Tensor, clock: Tensor) -> None:
        """Update the images of a chunk by one step of SGD with momentum."""
        images, velocity = self.images_KICHW[chunk.rows], self.velocity[chunk.rows]
        velocity.mul_(self.momentum).add_(gradient)
        decay_steps = self.parametrization.decay_steps
        if decay_steps is not None:
            images.sub_(self.lr * (1 - clock / decay_steps) * velocity)
        elif isinstance(self.lr, Tensor):
            images.sub_(self.lr * velocity)
        else:
            images.sub_(velocity, alpha=self.lr)
        if self.parametrization.clamp:
            self.parts.clamp_(images)
        if self.average is not None:
            assert self.parametrization.average_from is not None
            num_averaged = (clock - self.parametrization.average_from + 1).clamp(min=1)
            average = self.average[chunk.rows]
            average.add_((images - average) / num_averaged)  # copies the images until then

    def decode_images(self, indices_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return images of the first set as networks see them, and their labels.

        Args:
            indices_N: Indices of decoded images of the set, without padding.
        """
        stored = remove_padding(self.images_KICHW[:, self.slices[0].columns], self.slices[0].counts)
        decoded = self.decode(stored[indices_N // self.num_parts])
        first_N = torch.arange(len(indices_N), device=self.device) * self.num_parts
        return decoded[first_N + indices_N % self.num_parts], self.labels_N[indices_N]

    def result(self, set_slice: SetSlice) -> tuple[Tensor, Tensor]:
        """Return the stored images and the labels of one set, without padding."""
        images_KICHW = self.images_KICHW if self.average is None else self.average
        images_NCHW = remove_padding(images_KICHW[:, set_slice.columns], set_slice.counts)
        return images_NCHW, class_labels(set_slice.counts)
