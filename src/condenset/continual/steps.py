"""Read the images of a step of a class-incremental stream, and choose their format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.data.reading.arrays import from_arrays
from condenset.errors import UserError, check


class ImageFormat(NamedTuple):
    """What the images of all steps have in common."""

    name: str  # of the dataset
    shape: tuple[int, int, int]  # (C, H, W)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    allow_hflip: bool


def choose_format(
    data: ImageData, mean: tuple[float, ...] | None, std: tuple[float, ...] | None, allow_hflip: bool | None
) -> ImageFormat:
    """Return the format of all steps: as the user gives it, else as the first step has it."""
    channels, height, width = data.images.shape[1:]
    allow_hflip = data.allow_hflip if allow_hflip is None else allow_hflip
    return ImageFormat(data.name, (channels, height, width), mean or data.mean, std or data.std, allow_hflip)


def read_step(
    images: Any,
    labels: Any,
    class_names: Sequence[str] | None,
    *,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    allow_hflip: bool,
) -> ImageData:
    """Return the images of a step as ImageData.

    Args:
        images: ImageData, which is returned unchanged, or an array as `from_arrays` takes it.
        labels: Class names or integers, for an array.
        class_names: Names of integer labels. None: the name of label 3 is "3".
        mean: Mean of the normalisation. None: computed from the images.
        std: Standard deviation of the normalisation. None: computed from the images.
        allow_hflip: Whether horizontal flips keep the label.
    """
    if isinstance(images, ImageData):
        has_own = labels is None and class_names is None
        check(has_own, "labels and class_names must be None for ImageData, which has its own", "others")
        return images
    if labels is None:
        raise UserError("labels must be given with an array of images")
    array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    names: list[str] | None = None
    check(array.size > 0, "a step must have at least one image", array.size)
    if array.dtype.kind in "iu":
        values, indices = np.unique(array, return_inverse=True)
        labels, names = indices.reshape(array.shape), [_class_name(label, class_names) for label in values.tolist()]
    else:
        check(class_names is None, "class_names must be None unless labels are integers", str(array.dtype))
    return from_arrays(images, labels, class_names=names, mean=mean, std=std, allow_hflip=allow_hflip)


def _class_name(label: int, class_names: Sequence[str] | None) -> str:
    if class_names is None:
        return str(label)
    check(0 <= label < len(class_names), f"labels must be in 0..{len(class_names) - 1}", label)
    return str(class_names[label])
