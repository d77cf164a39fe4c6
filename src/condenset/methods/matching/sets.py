"""The synthetic images of a matching run: one or several sets side by side, padded to rectangular tensors.

Sets of several sizes share the real batches of every iteration. Their images are columns of one tensor. Classes that
have fewer images than the widest are padded; weights exclude the padding from every mean.
Shapes: K classes, I synthetic images per class of all sets, N images of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from condenset.data.class_store import ClassStore
from condenset.data.image_data import ImageData
from condenset.engine.memory import split_evenly
from condenset.methods.common import class_labels, images_per_class, initial_images, mean_weights, remove_padding


class PaddingMask(NamedTuple):
    """Which images of padded rows are real images of the row; None if there is no padding."""

    weight_KN: Tensor | None  # weight of each image in the mean of its class, 0 for padding
    positions: Tensor | None  # of the images in the flattened rows


class SetSlice(NamedTuple):
    """The columns of one set."""

    recipe: Any
    counts: list[int]  # images per class
    columns: slice


@dataclass(frozen=True)
class SetGroup:
    """Sets whose images pass through the network together."""

    index: int
    slices: list[SetSlice]
    columns: slice
    lr: float | Tensor  # one per column if the sets differ

    def split(self, mask: PaddingMask) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield the columns of each set within the group, and their weights."""
        for set_slice in self.slices:
            start = set_slice.columns.start - self.columns.start
            columns = slice(start, start + max(set_slice.counts))
            yield columns, None if mask.weight_KN is None else mask.weight_KN[:, columns]


class Chunk(NamedTuple):
    """Classes that pass through the network together; chunks bound the memory."""

    rows: slice
    classes_K: Tensor
    real: PaddingMask
    synthetic: list[PaddingMask]  # one per group


class SyntheticSets:
    """The images that a matching run learns, and their velocity.

    Args:
        data: The real images.
        recipes: One per set; they differ in the number of images and the learning rate alone.
        store: The real images on the device.
        seed: Seed of the initial images.
        batch_size: Real images per class and iteration.
        separate: Pass each set through the network by itself. Batch norm would mix them.
    """

    def __init__(
        self,
        data: ImageData,
        recipes: Sequence[Any],
        store: ClassStore,
        seed: int,
        *,
        batch_size: int,
        separate: bool,
    ) -> None:
        self.device, self.batch_size, self.momentum = store.counts.device, batch_size, recipes[0].momentum
        self.class_counts = data.class_counts
        self.slices: list[SetSlice] = []
        images, start = [], 0
        for recipe in recipes:
            counts = images_per_class(data, recipe)
            self.slices.append(SetSlice(recipe, counts, slice(start, start + max(counts))))
            images.append(initial_images(store, recipe.init, seed, max(counts)))
            start += max(counts)
        self.images_KICHW = torch.cat(images, 1)
        self.velocity = torch.zeros_like(self.images_KICHW)
        slices_by_group = [[set_slice] for set_slice in self.slices] if separate else [self.slices]
        self.groups = [self._make_group(index, slices) for index, slices in enumerate(slices_by_group)]

    def _make_group(self, index: int, slices: list[SetSlice]) -> SetGroup:
        rates = [set_slice.recipe.lr for set_slice in slices]
        lr: float | Tensor = rates[0]
        if len(set(rates)) > 1:
            columns = [torch.full((max(s.counts), 1, 1, 1), s.recipe.lr) for s in slices]
            lr = torch.cat(columns).to(self.device)
        return SetGroup(index, slices, slice(slices[0].columns.start, slices[-1].columns.stop), lr)

    def split(self, max_classes: int) -> list[Chunk]:
        """Split the classes into chunks of at most `max_classes`."""
        real_weight_KB = mean_weights([min(self.batch_size, count) for count in self.class_counts], self.batch_size)
        synthetic_weight_KI = torch.cat([mean_weights(s.counts, max(s.counts)) for s in self.slices], 1)
        chunks = []
        for rows in split_evenly(len(self.class_counts), max_classes):
            classes_K = torch.arange(rows.start, rows.stop, device=self.device)
            masks = [self._mask(synthetic_weight_KI[rows, group.columns]) for group in self.groups]
            chunks.append(Chunk(rows, classes_K, self._mask(real_weight_KB[rows]), masks))
        return chunks

    def _mask(self, weight_KN: Tensor) -> PaddingMask:
        if bool(weight_KN.all()):
            return PaddingMask(None, None)
        weight_KN = weight_KN.to(self.device)
        return PaddingMask(weight_KN, weight_KN.flatten().nonzero()[:, 0])

    def images(self, chunk: Chunk, group: SetGroup) -> Tensor:
        """Return the images of a chunk and group as a leaf that gradients can be computed for."""
        return self.images_KICHW[chunk.rows, group.columns].detach().clone().requires_grad_()

    def update(self, chunk: Chunk, group: SetGroup, gradient: Tensor) -> None:
        """Update the images of a chunk and group by one step of SGD with momentum."""
        images, velocity = (tensor[chunk.rows, group.columns] for tensor in (self.images_KICHW, self.velocity))
        velocity.mul_(self.momentum).add_(gradient)
        if isinstance(group.lr, Tensor):
            images.sub_(group.lr * velocity)
        else:
            images.sub_(velocity, alpha=group.lr)

    def result(self, set_slice: SetSlice) -> tuple[Tensor, Tensor]:
        """Return images and labels of one set, without padding."""
        images_NCHW = remove_padding(self.images_KICHW[:, set_slice.columns], set_slice.counts)
        return images_NCHW, class_labels(set_slice.counts)
