"""Arrays in memory: check pixels and labels, and make ImageData from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condenset.data.image_data import ImageData
from condenset.data.lazy import Labels, Pixels, check_labels, make_image_data
from condenset.errors import UserError, check

LAYOUT_RULE = "images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
BLOCK_IMAGES = 1024  # images that are converted at a time


def from_arrays(
    images: Any,
    labels: Any,
    *,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    allow_hflip: bool = True,
) -> ImageData:
    """Make ImageData from NumPy arrays or tensors. uint8 pixels in the layout (N, C, H, W) are shared, not copied.

    Args:
        images: uint8, or floats in 0..1, of shape (N, H, W), (N, H, W, C) or (N, C, H, W).
        labels: (N,) whole numbers or class names.
        class_names: One name per class; by default the sorted names in `labels`, or 0, 1, ….
        mean, std: Normalisation constants per channel; measured if None.
        name: Name of the dataset.
        allow_hflip: Allow horizontal flips. Disable for text and digits.

    Returns:
        The images in the given order.

    Raises:
        UserError: The arrays have a wrong shape or wrong values, or a class has no images.

    Example:
        >>> import numpy as np
        >>> import condenset as cs
        >>> pixels = np.zeros((4, 32, 32, 3), np.uint8)
        >>> cs.from_arrays(pixels, ["cat", "dog", "cat", "dog"], name="pets")
        ImageData(pets: 4 images of 3x32x32, 2 classes)
    """
    pixels = as_pixels(images)
    label_array, names = as_labels(labels, class_names, len(pixels))
    tensor = _to_tensor(pixels)
    return make_image_data(tensor, label_array, names, mean, std, name=name, source=name, allow_hflip=allow_hflip)


def _to_tensor(images: Pixels) -> torch.Tensor:
    if not (images.flags.writeable and images.flags.c_contiguous):  # torch cannot share read-only memory
        images = images.copy(order="C")
    return torch.from_numpy(images)


def as_pixels(images: Any) -> Pixels:
    """Return images of any valid layout as uint8 (N, C, H, W)."""
    array = _to_array(images, "images")
    if array.ndim == 3:
        array = array[:, None]
    check(array.ndim == 4, LAYOUT_RULE, array.shape)
    return to_uint8(to_channels_first(array, LAYOUT_RULE, prefer_first=True))


def _to_array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # NumPy has no bfloat16
        return values.numpy()  # type: ignore[no-any-return]
    try:
        return np.asarray(values)
    except ValueError:
        raise UserError(f"{name} must form one array, but they differ in shape") from None


def to_channels_first(array: NDArray[Any], rule: str, *, prefer_first: bool) -> NDArray[Any]:
    """Return (…, C, H, W) from either layout. If both are possible, prefer square images, then `prefer_first`."""
    first, middle, last = array.shape[-3:]
    could_be_first, could_be_last = first in (1, 3), last in (1, 3)
    check(could_be_first or could_be_last, rule, array.shape)
    if could_be_first and could_be_last:
        square_first, square_last = middle == last, first == middle
        could_be_first = square_first if square_first != square_last else prefer_first
    return array if could_be_first else np.moveaxis(array, -1, -3)


def to_uint8(array: NDArray[Any]) -> Pixels:
    """Return uint8 pixels as they are, and floats in 0..1 scaled to 0..255 and rounded."""
    if array.dtype == np.uint8:
        return array
    check(array.dtype.kind == "f", "pixels must be uint8, or floats in 0..1", str(array.dtype))
    pixels = np.empty(array.shape, np.uint8)
    for start in range(0, len(array), BLOCK_IMAGES):
        block = array[start : start + BLOCK_IMAGES]
        if _is_outside(block).any():
            raise _range_error(array, start)
        pixels[start : start + BLOCK_IMAGES] = np.rint(block.astype(np.float32) * 255)
    return pixels


def _is_outside(block: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where values are not in 0..1; NaN is not."""
    outside: NDArray[np.bool_] = ~((block >= 0) & (block <= 1))
    return outside


def _range_error(array: NDArray[Any], start: int) -> UserError:
    """Return the error for float pixels of which those from block `start` on are not all in 0..1."""
    outside = _is_outside(array[start : start + BLOCK_IMAGES])
    row, *position = (int(i) for i in np.unravel_index(outside.argmax(), outside.shape))
    index = (start + row, *position)
    blocks = (array[first : first + BLOCK_IMAGES] for first in range(start, len(array), BLOCK_IMAGES))
    num_outside = sum(int(_is_outside(block).sum()) for block in blocks)
    reason = f"{num_outside} values are not, the first at {index}: {float(array[index])}"
    return UserError(f"float pixels must be in 0..1, before any normalisation, but {reason}")


def as_labels(labels: Any, class_names: Sequence[str] | None, count: int) -> tuple[Labels, tuple[str, ...]]:
    """Return labels as int64 and the class names; by default the sorted names in `labels`, or 0, 1, …."""
    array = _to_array(labels, "labels")
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    name_counts = Counter(map(str, () if class_names is None else class_names))
    duplicates = [name for name, times in name_counts.items() if times > 1]
    check(not duplicates, "class names must differ", ", ".join(duplicates))
    check(array.shape == (count,), f"labels must have shape ({count},), one per image", array.shape)
    if array.dtype.kind in "USO":
        return _from_names(array.tolist(), class_names)
    check(array.dtype.kind in "iu", "labels must be whole numbers or names", str(array.dtype))
    check(count > 0, "there must be at least one image", count)
    return _from_integers(array, class_names)


def _from_integers(array: NDArray[Any], class_names: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    values = np.unique(array)
    low, high = int(values[0]), int(values[-1])
    if low < 0 or (class_names is not None and high >= len(class_names)):
        last = "" if class_names is None else len(class_names) - 1
        raise UserError(f"labels must be in 0..{last}, but got {low if low < 0 else high}")
    if class_names is None and high >= len(values):
        missing = sorted(set(range(min(high + 1, len(values) + 5))) - set(values.tolist()))[:5]
        more = "" if len(missing) == high + 1 - len(values) else ", …"
        raise UserError(f"labels must be 0..{high} without gaps, but no image has {', '.join(map(str, missing))}{more}")
    names = tuple(map(str, range(high + 1) if class_names is None else class_names))
    indices = array.astype(np.int64)
    check_labels(indices, names, "the dataset")
    return indices, names


def _from_names(values: list[Any], class_names: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    texts = [to_text(value) for value in values]
    names = tuple(sorted(set(texts)) if class_names is None else map(str, class_names))
    label_of = {name: label for label, name in enumerate(names)}
    unknown = next((text for text in texts if text not in label_of), None)
    check(unknown is None, f"labels must be among the {len(names)} class names", unknown)
    labels = np.array([label_of[text] for text in texts], np.int64)
    check_labels(labels, names, "the dataset")
    return labels, names


def to_text(value: Any) -> str:
    """Return a name as text, also if it is bytes."""
    check(isinstance(value, (str, bytes)), "names must be text", value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
