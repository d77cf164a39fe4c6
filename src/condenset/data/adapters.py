"""Datasets of other libraries (torch, torchvision, Hugging Face); none of these libraries is imported."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from condenset.data.arrays import as_labels, to_channels_first, to_uint8
from condenset.data.image_data import ImageData
from condenset.data.image_files import GREY_MODES, TargetShape, check_image_size, fit_image
from condenset.data.lazy import Pixels, make_image_data
from condenset.errors import UserError, check, format_error
from condenset.io.progress import show_progress

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
    allow_hflip: bool = True,
    verbose: bool = True,
) -> ImageData:
    """Read a map-style dataset of torch, torchvision or Hugging Face into memory.

    Args:
        dataset: One split. Its items are (image, label), or dicts with 'image' or 'img' and 'label' or 'fine_label'.
            An image is a Pillow image, an array or a tensor.
        size: Image size in pixels. Images are cropped to their central square and resized. None leaves images as they
            are; they must then be square and have the same size.
        class_names: One name per class; by default those of the dataset.
        mean, std: Normalisation constants per channel; measured if None.
        name: Name of the dataset; by default the name of its class.
        allow_hflip: Allow horizontal flips. Disable for text and digits.
        verbose: Show progress.

    Returns:
        The images in the order of the dataset. They have one channel if all are grey.

    Raises:
        UserError: The object is not a map-style dataset, or an item has a wrong type or shape.

    Example:
        >>> import torch
        >>> import condenset as cs
        >>> dataset = torch.utils.data.TensorDataset(torch.zeros(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))
        >>> cs.from_dataset(dataset, name="zeros", verbose=False)
        ImageData(zeros: 4 images of 3x32x32, 2 classes)
    """
    check_image_size(size)
    if isinstance(dataset, Mapping):
        raise UserError(f"dataset must be one split, but got all of them: choose one of {', '.join(map(str, dataset))}")
    is_stream = isinstance(dataset, torch.utils.data.IterableDataset)
    if is_stream or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(f"a dataset must have a length and items (map-style), but {type(dataset).__name__} does not")
    count = len(dataset)
    check(count > 0, "there must be at least one image", count)
    name = name or type(dataset).__name__.lower()
    pixels, item_labels = _read_items(dataset, count, size, f"reading {name}", verbose)
    labels, names = as_labels(item_labels, class_names or _find_class_names(dataset), count)
    images = torch.from_numpy(pixels)
    return make_image_data(images, labels, names, mean, std, name=name, source=name, allow_hflip=allow_hflip)


def _read_items(
    dataset: Any, count: int, size: int | None, description: str, verbose: bool
) -> tuple[Pixels, list[int | str]]:
    labels: list[int | str] = []
    with show_progress(description, count, verbose=verbose) as advance:
        for index in range(count):
            item, label = _split_item(dataset[index], index)
            image = _to_pillow(item, index)
            if index == 0:
                target = _detect_target_shape(image, size)
                pixels = np.empty((count, target.channels, target.size, target.size), np.uint8)
            if target.channels == 1 and image.mode not in GREY_MODES:  # the first colour image after grey ones
                target, pixels = TargetShape(3, target.size, target.resize), pixels.repeat(3, axis=1)
            pixels[index] = _fit_item(image, target, index)
            labels.append(_check_label(label, index))
            advance(1)
    return pixels, labels


def _fit_item(image: Image.Image, target: TargetShape, index: int) -> Pixels:
    try:
        return fit_image(image, target, f"image {index}")
    except UserError:
        raise
    except Exception as error:  # Pillow often decodes an image file only here, and the file can be broken
        raise UserError(f"image {index} is not a readable image: {format_error(error)}") from None


def _split_item(item: Any, index: int) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image_key = next((key for key in IMAGE_KEYS if key in item), None)
        label_key = next((key for key in LABEL_KEYS if key in item), None)
        if image_key is None or label_key is None:
            rule = f"items must have one of {', '.join(IMAGE_KEYS)} and one of {', '.join(LABEL_KEYS)}"
            raise UserError(f"{rule}, but item {index} has {', '.join(map(str, item))}")
        return item[image_key], item[label_key]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"items must be (image, label) or a dict, but item {index} is a {type(item).__name__}")
    return item[0], item[1]


def _check_label(label: Any, index: int) -> int | str:
    if isinstance(label, str):
        return label
    try:
        return operator.index(label)
    except TypeError:
        raise UserError(f"labels must be whole numbers or names, but label {index} is {label!r}") from None


def _to_pillow(item: Any, index: int) -> Image.Image:
    if isinstance(item, Image.Image):
        return item
    is_tensor = isinstance(item, torch.Tensor)
    if not is_tensor and not isinstance(item, np.ndarray):
        raise UserError(
            f"images must be Pillow images, arrays or tensors, but image {index} is a {type(item).__name__}"
        )
    array = item.detach().cpu().numpy() if is_tensor else item
    rule = f"image {index} must be (H, W), (H, W, C) or (C, H, W) with 1 or 3 channels"
    check(array.ndim in (2, 3), rule, array.shape)
    planes = to_channels_first(array[None] if array.ndim == 2 else array, rule, prefer_first=is_tensor)
    try:
        pixels = to_uint8(planes)
    except UserError as error:
        raise UserError(f"image {index}: {error}") from None
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def _detect_target_shape(image: Image.Image, size: int | None) -> TargetShape:
    if size is None and image.width != image.height:
        raise UserError(f"image 0 is {image.width}x{image.height}, not square: give a size to resize images to")
    return TargetShape(1 if image.mode in GREY_MODES else 3, size or image.width, resize=size is not None)


def _find_class_names(dataset: Any) -> Sequence[str] | None:
    """Return the names in torchvision's attribute `classes` or in Hugging Face's features, or None."""
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        label = next((features[key] for key in LABEL_KEYS if key in features), None)
        return getattr(label, "names", None)
    return getattr(dataset, "classes", None)
