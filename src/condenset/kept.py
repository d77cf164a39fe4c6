"""What a memory holds of each class: a step's set taken apart, and merged with what is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import draws
from condenset.errors import check
from condenset.types import CondensedSet, ImageData


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Images of one class in pixel space, and the number of real ones that they stand for."""

    images_ICHW: Tensor
    seen: int
    soft_IK: Tensor | None = None  # labels over the classes there were when they came; None: hard ones

    def __len__(self) -> int:
        return len(self.images_ICHW)

    def soft(self, num_classes: int) -> Tensor | None:
        """(I, num_classes) the soft labels, if it has such: nothing of it is of a class that came later."""
        return None if self.soft_IK is None else F.pad(self.soft_IK, (0, num_classes - self.soft_IK.shape[1]))


def in_parts(images_NCHW: Tensor, labels: Tensor, counts: Sequence[int], seen: Sequence[int]) -> list[Kept]:
    """Images that lie class after class, `counts` of each, by class."""
    hard = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    softs: Sequence[Tensor | None] = [None] * len(counts)
    if labels.ndim == 2:
        softs = labels.split(list(counts))
    else:
        check(torch.equal(labels, hard), "images must be in the order of classes", labels.tolist())
    parts = zip(images_NCHW.split(list(counts)), softs, seen, strict=True)
    # Copies: views would keep the images of all classes alive for one of them.
    return [Kept(images_ICHW=images.clone(), soft_IK=soft, seen=num) for images, soft, num in parts]


def taken_apart(small: CondensedSet, step: ImageData, counts: Sequence[int], known: Sequence[str]) -> dict[str, Kept]:
    """A step's set by class; soft labels get the columns that the classes have among those known and those new."""
    check(small.class_names == step.class_names, f"the set's classes must be {step.class_names}", small.class_names)
    shape = (sum(counts), *step.images.shape[1:])
    check(tuple(small.images.shape) == shape, f"the set's images must be {shape}", tuple(small.images.shape))
    labels = small.labels
    if labels.ndim == 2:
        names = list(dict.fromkeys([*known, *step.class_names]))
        labels = torch.zeros(len(small), len(names))
        labels[:, [names.index(name) for name in step.class_names]] = small.labels
    return dict(zip(step.class_names, in_parts(small.images, labels, counts, step.class_counts), strict=True))


def merged(name: str, old: Kept, new: Kept, ipc: int, seed: int) -> Kept:
    """At most `ipc` images: of either part in proportion to the real ones that it stands for.

    Which of the old ones stay, and how fractions are rounded, is decided by lot, so that all that was ever seen has the
    same chance, in however many parts it came. Of the new ones the first are taken: those that a coreset chose first.
    """
    room = min(ipc, len(old) + len(new))
    share = room * new.seen / (old.seen + new.seen)
    lot, stay = (draws.make_key(seed, "merge", use) for use in ("share", "stay"))
    row = torch.tensor([draws.row_of(name)])
    num_new = int(share + float(draws.uniform(lot, old.seen, row, 1)))
    num_new = min(max(num_new, room - len(old)), len(new))
    places = draws.subsets(stay, old.seen, row, torch.tensor([len(old)]), len(old), room - num_new)[0].sort().values
    images_ICHW = torch.cat((old.images_ICHW[places], new.images_ICHW[:num_new]))
    soft_IK = None
    if new.soft_IK is not None and (before_IK := old.soft(new.soft_IK.shape[1])) is not None:
        soft_IK = torch.cat((before_IK[places], new.soft_IK[:num_new]))
    return Kept(images_ICHW=images_ICHW, seen=old.seen + new.seen, soft_IK=soft_IK)
