"""Datasets of other libraries (torch, torchvision, Hugging Face); none of these libraries is imported."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from PIL import Image

from condenset.data.folders.image_decoding import GREY_MODES, TargetShape, fit_image, make_target_shape, to_user_error
from condenset.data.image_data import ImageData, Splits
from condenset.data.reading.arrays import as_labels, to_channels_first, to_pillow, to_uint8, warn_about_binary_pixels
from condenset.data.reading.lazy import Labels, Pixels, check_labels, make_image_data
from condenset.data.reading.options import LoadOptions
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check, format_names, warn_user
from condenset.io.progress import limit_progress, show_progress

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label")
TEST_SPLITS = ("test", "validation", "val", "valid")  # the first that exists is the test split


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the image and the label in items that are mappings. None: one of the usual names."""

    image: str | None = None
    label: str | None = None


class DatasetKeywords(TypedDict, total=False):
    """The keywords of `from_dataset`."""

    size: int | None
    fit: str | None
    background: str
    image_column: str | None
    label_column: str | None
    class_names: Sequence[str] | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    name: str | None
    allow_hflip: bool
    verbose: bool


@overload
def from_dataset(dataset: Mapping[str, Any], **keywords: Unpack[DatasetKeywords]) -> Splits: ...
@overload
def from_dataset(dataset: Any, **keywords: Unpack[DatasetKeywords]) -> ImageData: ...
@torch_defaults()
def from_dataset(
    dataset: Any,
    *,
    size: int | None = None,
    fit: str | None = None,
    background: str = "white",
    image_column: str | None = None,
    label_column: str | None = None,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    allow_hflip: bool = True,
    verbose: bool = True,
) -> ImageData | Splits:
    """Read a map-style dataset of torch, torchvision or Hugging Face into memory.

    Args:
        dataset: One split, or a mapping of splits such as a Hugging Face DatasetDict. Items are (image, label), or
            dicts with 'image' or 'img' and 'label' or 'fine_label'. An image is a Pillow image, an array or a tensor.
        size: Image size in pixels. Images are made square and resized. None leaves images as they are; they must then
            have the same size.
        fit: How images that are not square become square: "crop" cuts the central square, "pad" adds borders. None:
            "crop" if `size` is given, else such images are refused.
        background: Colour under transparent pixels and of borders: a colour name or #rrggbb.
        image_column: Name of the image in items that are dicts.
        label_column: Name of the label in items that are dicts.
        class_names: One name per class; by default those of the dataset.
        mean: Mean of the pixels per channel, for normalisation; measured if None.
        std: Standard deviation per channel; measured if None.
        name: Name of the dataset; by default the name of its class.
        allow_hflip: Allow horizontal flips. Disable for text and digits.
        verbose: Show progress.

    Returns:
        The images in the order of the dataset. They have one channel if all are grey. For a mapping, the splits: train,
        and test (else validation, val or valid) if there is one.

    Raises:
        UserError: The object is not a map-style dataset, or an item has a wrong type or shape.

    Example:
        >>> import torch
        >>> import condenset as cs
        >>> dataset = torch.utils.data.TensorDataset(torch.zeros(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))
        >>> cs.from_dataset(dataset, name="zeros", verbose=False)
        ImageData(zeros: 4 images of 3x32x32, 2 classes)
        >>> cs.from_dataset({"train": dataset, "test": dataset}, name="zeros", verbose=False)
        Splits(zeros: 4 train and 4 test images of 3x32x32, 2 classes)
    """
    options = LoadOptions(size=size, fit=fit, background=background)
    columns = Columns(image_column, label_column)
    splits = _choose_splits(dataset) if isinstance(dataset, Mapping) else [dataset]
    name = name or type(splits[0]).__name__.lower()
    with limit_progress(verbose):
        contents = [_read_items(split, options, columns, f"reading {name}") for split in splits]
    all_labels = [label for _, split_labels in contents for label in split_labels]
    labels, names = _number_labels(all_labels, class_names, _find_class_names(splits[0], columns))
    pixels = _match_shapes([pixels for pixels, _ in contents])
    count = len(pixels[0])
    if isinstance(dataset, Mapping):
        check_labels(labels[:count], names, "the train split")
    images = torch.from_numpy(pixels[0])
    train = make_image_data(images, labels[:count], names, mean, std, name=name, source=name, allow_hflip=allow_hflip)
    if not isinstance(dataset, Mapping):
        return train
    if len(pixels) == 1:
        return Splits(train=train, test=None)
    test = dataclasses.replace(train, images=torch.from_numpy(pixels[1]), labels=torch.from_numpy(labels[count:]))
    return Splits(train=train, test=test)


def _choose_splits(splits: Mapping[str, Any]) -> list[Any]:
    """Return the train split and, if there is one, the test split."""
    others = [str(name) for name in splits if name not in ("train", *TEST_SPLITS)]
    if others or "train" not in splits:
        rule = f"splits must be named train and {' or '.join(TEST_SPLITS)}"
        hint = "give them as {'train': …, 'test': …}"
        raise UserError(f"{rule}, but got {format_names([str(name) for name in splits], 5) or 'none'}; {hint}")
    test = next((splits[name] for name in TEST_SPLITS if name in splits), None)
    return [splits["train"]] if test is None else [splits["train"], test]


def _match_shapes(pixels: list[Pixels]) -> list[Pixels]:
    """Give all splits three channels if one has colours, and check that they have the same size."""
    channels = max(images.shape[1] for images in pixels)
    sizes = {images.shape[-1] for images in pixels}
    check(len(sizes) == 1, "the splits must have the same image size; give a size", sorted(sizes))
    return [images if images.shape[1] == channels else images.repeat(3, axis=1) for images in pixels]


def _number_labels(
    labels: list[int | str], class_names: Sequence[str] | None, dataset_names: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...]]:
    """Return the labels as positions in the class names. Classes of the dataset without images are left out."""
    if class_names is not None or dataset_names is None:
        return as_labels(labels, class_names, len(labels))
    names = [str(name) for name in dataset_names]
    texts = []
    for index, label in enumerate(labels):
        in_range = isinstance(label, str) or 0 <= label < len(names)
        check(in_range, f"label {index} must be in 0..{len(names) - 1}", label)
        texts.append(label if isinstance(label, str) else names[label])
    used = set(texts)
    missing = [name for name in names if name not in used]
    if missing:
        count = f"{len(missing)} of the {len(names)} classes"
        warn_user(f"{count} have no images and are left out: {format_names(missing, 5)}")
    return as_labels(texts, [name for name in names if name in used], len(labels))


def _read_items(
    dataset: Any, options: LoadOptions, columns: Columns, description: str
) -> tuple[Pixels, list[int | str]]:
    is_stream = isinstance(dataset, torch.utils.data.IterableDataset)
    if is_stream or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise UserError(f"a dataset must have a length and items (map-style), but {type(dataset).__name__} does not")
    count, labels = len(dataset), list[int | str]()
    check(count > 0, "there must be at least one image", count)
    with show_progress(description, count) as advance:
        for index in range(count):
            item, label = _split_item(dataset[index], index, columns)
            image = _to_pillow(item, index)
            is_grey = image.mode in GREY_MODES
            if index == 0:
                target = make_target_shape("image 0", image.size, is_grey=is_grey, options=options)
                pixels = np.empty((count, target.channels, target.size, target.size), np.uint8)
            if target.channels == 1 and not is_grey:  # the first colour image after grey ones
                target, pixels = dataclasses.replace(target, channels=3), pixels.repeat(3, axis=1)
            pixels[index] = _fit_item(image, target, index)
            labels.append(_check_label(label, index))
            advance(1)
    warn_about_binary_pixels(pixels)
    return pixels, labels


def _fit_item(image: Image.Image, target: TargetShape, index: int) -> Pixels:
    try:
        return fit_image(image, target, f"image {index}")
    except Exception as error:  # Pillow often decodes an image file only here, and the file can be broken
        raise to_user_error(f"image {index}", error) from None


def _split_item(item: Any, index: int, columns: Columns) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image_column = _find_column(item, columns.image, IMAGE_COLUMNS)
        label_column = _find_column(item, columns.label, LABEL_COLUMNS)
        if image_column is None or label_column is None:
            kind = "image" if image_column is None else "label"
            usual = IMAGE_COLUMNS if kind == "image" else LABEL_COLUMNS
            rule = f"items must have {getattr(columns, kind) or ' or '.join(usual)}"
            raise UserError(f"{rule}, but item {index} has {', '.join(map(str, item))}; give {kind}_column")
        return item[image_column], item[label_column]
    if columns != Columns():
        raise UserError(f"image_column and label_column need items that are dicts, but got {type(item).__name__}")
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise UserError(f"items must be (image, label) or a dict, but item {index} is a {type(item).__name__}")
    return item[0], item[1]


def _find_column(item: Mapping[str, Any], name: str | None, usual: Sequence[str]) -> str | None:
    return next((key for key in (usual if name is None else (name,)) if key in item), None)


def _check_label(label: Any, index: int) -> int | str:
    if isinstance(label, str):
        return label
    try:
        value: Any = label.item() if isinstance(label, (torch.Tensor, np.ndarray, np.generic)) else label
        if isinstance(value, bool):
            return value
        return int(value) if isinstance(value, float) and value.is_integer() else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # the others: a tensor or an array of several values
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
        return to_pillow(to_uint8(planes))
    except UserError as error:
        raise UserError(f"image {index}: {error}") from None


def _find_class_names(dataset: Any, columns: Columns) -> Sequence[str] | None:
    """Return the names in torchvision's attribute `classes` or in Hugging Face's features, or None."""
    while isinstance(dataset, torch.utils.data.Subset):
        dataset = dataset.dataset
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        names, *others = (_find_class_names(part, columns) for part in dataset.datasets)
        agree = names is not None and all(other is not None and list(other) == list(names) for other in others)
        return names if agree else None
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        label_column = _find_column(features, columns.label, LABEL_COLUMNS)
        return getattr(features[label_column], "names", None) if label_column else None
    return getattr(dataset, "classes", None)
