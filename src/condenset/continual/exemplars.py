"""The images of each class in a replay memory: split a condensed set by class, and merge images of a repeated class.

Shapes: N images of all classes, I images of one class, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.errors import check


@dataclass(frozen=True, kw_only=True)
class ClassExemplars:
    """The images of one class in a replay memory.

    Attributes:
        images_ICHW: Stored images in pixel space.
        num_real: Number of real images that they represent.
        soft_IK: Soft labels over the classes that existed when the images were stored. None: hard labels.
    """

    images_ICHW: Tensor
    num_real: int
    soft_IK: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images_ICHW)

    def soft_labels(self, num_classes: int) -> Tensor | None:
        """Return (I, num_classes) soft labels, which are 0 for later classes; None for hard labels."""
        return None if self.soft_IK is None else F.pad(self.soft_IK, (0, num_classes - self.soft_IK.shape[1]))


def split_exemplars(
    images_NCHW: Tensor, labels: Tensor, counts: Sequence[int], num_real: Sequence[int]
) -> list[ClassExemplars]:
    """Split images in class order by class.

    Args:
        images_NCHW: Images in class order.
        labels: Hard labels (N,) or soft labels (N, K).
        counts: Number of images of each class.
        num_real: Number of real images that the images of each class represent.
    """
    soft_labels: Sequence[Tensor | None] = [None] * len(counts)
    if labels.ndim == 2:
        soft_labels = labels.split(list(counts))
    else:
        expected = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        check(torch.equal(labels, expected), "images must be in class order", labels.tolist())
    parts = zip(images_NCHW.split(list(counts)), soft_labels, num_real, strict=True)
    # Copies, because a view would keep the images of all classes in memory.
    return [ClassExemplars(images_ICHW=images.clone(), soft_IK=soft, num_real=num) for images, soft, num in parts]


def split_by_class(
    condensed: CondensedSet, step: ImageData, counts: Sequence[int], class_names: Sequence[str]
) -> dict[str, ClassExemplars]:
    """Split the condensed set of a step by class.

    Args:
        condensed: The set.
        step: The data it was condensed from.
        counts: Number of images of each class in the set.
        class_names: Classes in the memory. Soft labels get columns for these classes and the new ones.
    """
    check(
        condensed.class_names == step.class_names,
        f"the classes of the set must be {step.class_names}",
        condensed.class_names,
    )
    shape = (sum(counts), *step.images.shape[1:])
    set_shape = tuple(condensed.stored_images.shape)
    check(set_shape == shape, f"the images of the set must have the shape {shape}", set_shape)
    labels = condensed.stored_labels
    if labels.ndim == 2:
        names = list(dict.fromkeys([*class_names, *step.class_names]))
        labels = torch.zeros(len(labels), len(names))
        labels[:, [names.index(name) for name in step.class_names]] = condensed.stored_labels
    exemplars = split_exemplars(condensed.stored_images, labels, counts, step.class_counts)
    return dict(zip(step.class_names, exemplars, strict=True))


def merge_exemplars(name: str, old: ClassExemplars, new: ClassExemplars, ipc: int, seed: int) -> ClassExemplars:
    """Merge old and new images of a class into at most `ipc`, in proportion to the real images that they represent.

    The old images to retain are drawn at random, and fractions are rounded at random, so that every real image has the
    same chance in however many steps the class arrived. Of the new images the first are used, because a coreset method
    selects the best images first.
    """
    num_images = min(ipc, len(old) + len(new))
    num_real = old.num_real + new.num_real
    share_key, stay_key = (rng.make_key(seed, "merge", use) for use in ("share", "stay"))
    stream = torch.tensor([rng.class_stream_id(name)])
    num_new = int(num_images * new.num_real / num_real + float(rng.uniform(share_key, old.num_real, stream, 1)))
    num_new = min(max(num_new, num_images - len(old)), len(new))
    selected = rng.sample_without_replacement(
        stay_key, old.num_real, stream, torch.tensor([len(old)]), len(old), num_images - num_new
    )
    index = selected[0].sort().values
    images_ICHW = torch.cat((old.images_ICHW[index], new.images_ICHW[:num_new]))
    soft_IK = None
    if new.soft_IK is not None and (old_soft_IK := old.soft_labels(new.soft_IK.shape[1])) is not None:
        soft_IK = torch.cat((old_soft_IK[index], new.soft_IK[:num_new]))
    return ClassExemplars(images_ICHW=images_ICHW, num_real=num_real, soft_IK=soft_IK)
