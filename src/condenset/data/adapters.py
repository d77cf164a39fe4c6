"""Datasets of other libraries -> ImageData, known by what they can do; none of those libraries is imported."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from condenset.data.arrays import as_labels, channels_first, to_bytes
from condenset.data.images import GREY_MODES, Frame, check_size, framed
from condenset.data.raw import Pixels, image_data
from condenset.errors import UserError, check, one_line
from condenset.progress import progress_bar
from condenset.types import ImageData

IMAGE_KEYS = ("image", "img")
LABEL_KEYS = ("label", "fine_label")


def from_dataset(
    dataset: Any,
    *,
    size: int | None = None,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    can_flip: bool = True,
) -> ImageData:
    """Any map-style dataset of torch, torchvision or Hugging Face; images of mixed sizes need a `size` to be fitted to.

    An item is (image, label), or a dict with 'image' or 'img' and 'label' or 'fine_label'; an image is a Pillow image,
    an array or a tensor.
    """
    check_size(size)
    if isinstance(dataset, Mapping):
        raise UserError(f"give one split, not all of them: one of {', '.join(map(str, dataset))}")
    streams = isinstance(dataset, torch.utils.data.IterableDataset)
    if streams or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(f"a dataset must have a length and items (map-style), but {type(dataset).__name__} has not")
    count = len(dataset)
    check(count > 0, "there must be at least one image", count)
    title = name or type(dataset).__name__.lower()
    labels: list[int | str] = []
    with progress_bar(f"reading {title}", count, "images") as advance:
        for index in range(count):
            item, label = _pair(dataset[index], index)
            image = _as_pillow(item, index)
            if index == 0:
                frame = _first_frame(image, size)
                pixels = np.empty((count, frame.channels, frame.size, frame.size), np.uint8)
            if frame.channels == 1 and image.mode not in GREY_MODES:  # the first in colour: those before were grey
                frame, pixels = Frame(3, frame.size, frame.fits), pixels.repeat(3, axis=1)
            pixels[index] = _framed(image, frame, index)
            labels.append(_as_label(label, index))
            advance(1)
    found, names = as_labels(labels, class_names or _class_names(dataset), count)
    return image_data(torch.from_numpy(pixels), found, names, mean, std, title, title, can_flip)


def _framed(image: Image.Image, frame: Frame, index: int) -> Pixels:
    try:
        return framed(image, frame, f"image {index}")
    except UserError:
        raise
    except Exception as error:  # an image file is often decoded only here, and may be broken
        raise UserError(f"image {index} is not a readable image: {one_line(error)}") from None


def _pair(item: Any, index: int) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image_key = next((key for key in IMAGE_KEYS if key in item), None)
        label_key = next((key for key in LABEL_KEYS if key in item), None)
        if image_key is None or label_key is None:
            wanted = f"one of {', '.join(IMAGE_KEYS)} and one of {', '.join(LABEL_KEYS)}"
            raise UserError(f"items must have {wanted}, but item {index} has {', '.join(map(str, item))}")
        return item[image_key], item[label_key]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"items must be (image, label) or a dict, but item {index} is a {type(item).__name__}")
    return item[0], item[1]


def _as_label(label: Any, index: int) -> int | str:
    if isinstance(label, str):
        return label
    try:
        return operator.index(label)
    except TypeError:
        raise UserError(f"labels must be whole numbers or names, but label {index} is {label!r}") from None


def _as_pillow(item: Any, index: int) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    is_tensor = isinstance(item, torch.Tensor)
    if not is_tensor and not isinstance(item, np.ndarray):
        kind = type(item).__name__
        raise UserError(f"images must be Pillow images, arrays or tensors, but image {index} is a {kind}")
    array = item.detach().cpu().numpy() if is_tensor else item
    rule = f"image {index} must be (H, W), (H, W, C) or (C, H, W) with 1 or 3 channels"
    check(array.ndim in (2, 3), rule, array.shape)
    planes = channels_first(array[None] if array.ndim == 2 else array, rule, prefer_first=is_tensor)
    try:
        pixels = to_bytes(planes)
    except UserError as error:
        raise UserError(f"image {index}: {error}") from None
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _first_frame(image: Image.Image, size: int | None) -> Frame:
    if size is None and image.width != image.height:
        raise UserError(f"image 0 is {image.width}x{image.height}, not square: give a size to fit images to")
    return Frame(1 if image.mode in GREY_MODES else 3, size or image.width, fits=size is not None)


def _class_names(dataset: Any) -> Sequence[str] | None:
    """The names torchvision keeps in `classes` and Hugging Face in its features, if there are any."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        label = next((features[key] for key in LABEL_KEYS if key in features), None)
        return getattr(label, "names", None)
    return getattr(dataset, "classes", None)
