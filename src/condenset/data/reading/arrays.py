"""Arrays in memory: check pixels and labels, and make ImageData from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from condenset.data.folders.image_decoding import fit_image, make_target_shape
from condenset.data.image_data import ImageData, check_class_names, check_dense
from condenset.data.reading.class_names import sort_names
from condenset.data.reading.lazy import Labels, Pixels, make_image_data
from condenset.data.reading.options import LoadOptions
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check, warn_user

LAYOUT_RULE = "images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
DEFAULT_NAME = "arrays"  # of the datasets of all arrays
BLOCK_IMAGES = 1024  # images that are converted at a time


@torch_defaults()
def from_arrays(
    images: Any,
    labels: Any,
    *,
    size: int | None = None,
    fit: str | None = None,
    background: str = "white",
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = DEFAULT_NAME,
    allow_hflip: bool = True,
) -> ImageData:
    """Make ImageData from NumPy arrays or tensors. uint8 pixels in the layout (N, C, H, W) are shared, not copied.

    Args:
        images: Integers in 0..255, floats in 0..1 or booleans, of shape (N, H, W), (N, H, W, C) or (N, C, H, W).
        labels: (N,) whole numbers, class names or booleans.
        size: Image size in pixels to resize to; by default the size of the images.
        fit: How images that are not square become square: "crop" cuts the central square, "pad" adds borders. None:
            "crop" if `size` is given, else such images are refused.
        background: Colour of the borders: a colour name or #rrggbb.
        class_names: One name per class; numbers in `labels` are then positions in it. Classes of test images need no
            images. By default the values in `labels`, sorted; names that are numbers sort as numbers.
        mean: Mean of the pixels per channel, for normalisation; measured if None.
        std: Standard deviation per channel; measured if None.
        name: Name of the dataset.
        allow_hflip: Allow horizontal flips. Disable for text and digits.

    Returns:
        The images in the given order.

    Raises:
        UserError: The arrays have a wrong shape or wrong values.

    Example:
        >>> import numpy as np
        >>> import condenset as cs
        >>> pixels = np.zeros((4, 32, 32, 3), np.uint8)
        >>> cs.from_arrays(pixels, ["cat", "dog", "cat", "dog"], name="pets")
        ImageData(pets: 4 images of 3x32x32, 2 classes)
    """
    pixels = fit_pixels(as_pixels(images), LoadOptions(size=size, fit=fit, background=background))
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
    pixels = to_uint8(to_channels_first(array, LAYOUT_RULE, prefer_first=True))
    warn_about_binary_pixels(pixels)
    return pixels


def warn_about_binary_pixels(images: Pixels) -> None:
    """Warn if uint8 images have no other pixels than 0 and 1, which are both almost black."""
    if images.max(initial=0) == 1:
        warn_user("all pixels are 0 or 1, but 255 is white: multiply by 255")


def fit_pixels(images: Pixels, options: LoadOptions) -> Pixels:
    """Return (N, C, H, W) images as squares of one size. Without a size and a fit they must be square."""
    num_images, channels, height, width = images.shape
    if num_images == 0 or 0 in (height, width):
        return images
    target = make_target_shape("image 0", (width, height), is_grey=channels == 1, options=options)
    if (target.size, target.size) == (height, width):
        return images
    pixels = np.empty((num_images, target.channels, target.size, target.size), np.uint8)
    for index, image in enumerate(images):
        pixels[index] = fit_image(to_pillow(image), target, f"image {index}")
    return pixels


def to_pillow(image: Pixels) -> Image.Image:
    """Return a uint8 (C, H, W) image as a Pillow image."""
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))


def _to_array(values: Any, name: str) -> NDArray[Any]:
    if isinstance(values, torch.Tensor):
        check_dense(name, values)
        values = values.detach().cpu().resolve_neg().resolve_conj()
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
    """Return integers in 0..255 as uint8, floats in 0..1 scaled to 0..255 and rounded, and booleans as 0 and 255."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    check(array.dtype.kind in "iuf", "pixels must be integers in 0..255, or floats in 0..1", str(array.dtype))
    kind, limit, scale = ("float", 1, 255) if array.dtype.kind == "f" else ("integer", 255, 1)
    low, high = (array.min().item(), array.max().item()) if array.size else (0, 0)
    if not (low >= 0 and high <= limit):  # also if they are NaN
        rule = f"{kind} pixels must be in 0..{limit}, before any normalisation"
        raise UserError(f"{rule}, but got values from {low:.4g} to {high:.4g}")
    pixels = np.empty(array.shape, np.uint8)
    for start in range(0, len(array), BLOCK_IMAGES):
        pixels[start : start + BLOCK_IMAGES] = np.rint(array[start : start + BLOCK_IMAGES].astype(np.float32) * scale)
    return pixels


def as_labels(labels: Any, class_names: Sequence[str] | None, count: int) -> tuple[Labels, tuple[str, ...]]:
    """Return labels as int64 and the class names; by default the sorted values in `labels`."""
    if class_names is not None:
        check_class_names(class_names)
        class_names = tuple(class_names)
    array = _to_array(labels, "labels")
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    name_counts = Counter(map(str, () if class_names is None else class_names))
    duplicates = [name for name, times in name_counts.items() if times > 1]
    check(not duplicates, "class names must differ", ", ".join(duplicates))
    check(array.shape == (count,), f"labels must have shape ({count},), one per image", array.shape)
    array = to_integers(array)
    if array.dtype == np.bool_:
        array = array.astype(str) if class_names is None else array.astype(np.int64)
    check(count > 0, "there must be at least one image", count)
    if array.dtype.kind in "USO":
        return _from_names(array.tolist(), class_names)
    check(array.dtype.kind in "iu", "labels must be whole numbers or names", str(array.dtype))
    return _from_integers(array, class_names)


def to_integers(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels that are whole floats, such as 2.0, as integers, and all other labels unchanged."""
    if labels.dtype.kind != "f":
        return labels
    is_whole = np.isfinite(labels) & (labels == np.rint(labels)) & (np.abs(labels) < 2**53)
    if not is_whole.all():
        check(False, "labels must be whole numbers or names", labels[~is_whole][0].item())
    return labels.astype(np.int64)


def _from_integers(array: NDArray[Any], class_names: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    values = np.unique(array)
    if class_names is None:
        return np.searchsorted(values, array).astype(np.int64), tuple(map(str, values.tolist()))
    names, low, high = tuple(map(str, class_names)), int(values[0]), int(values[-1])
    if low < 0 or high >= len(names):
        raise UserError(f"labels must be in 0..{len(names) - 1}, but got {low if low < 0 else high}")
    return array.astype(np.int64), names


def _from_names(values: list[Any], class_names: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    texts = [to_text(value) for value in values]
    names = sort_names(set(texts)) if class_names is None else tuple(map(str, class_names))
    label_of = {name: label for label, name in enumerate(names)}
    unknown = next((text for text in texts if text not in label_of), None)
    check(unknown is None, f"labels must be among the {len(names)} class names", unknown)
    return np.array([label_of[text] for text in texts], np.int64), names


def to_text(value: Any) -> str:
    """Return a name as text, also if it is bytes."""
    check(isinstance(value, (str, bytes)), "names must be text", value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
