"""Arrays in memory and in .npz files -> ImageData."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from condenset.data.guards import require_file
from condenset.data.raw import HELD_OUT, Labels, Pixels, Raw, array_part, check_labels, hold_out, image_data
from condenset.data.readers import DEFLATE_MOST
from condenset.errors import UserError, check, one_line
from condenset.types import ImageData

LAYOUTS = "images must be (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels"
NPZ_KEYS = (("x_train", "y_train"), ("images", "labels"), ("x", "y"))


def from_arrays(
    x: Any,
    y: Any,
    *,
    class_names: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    can_flip: bool = True,
) -> ImageData:
    """Images and labels held in NumPy arrays or tensors; uint8 (N, C, H, W) pixels are shared, not copied.

    x: uint8 or float in 0..1, (N, H, W), (N, H, W, C) or (N, C, H, W); y: (N,) whole numbers or names.
    """
    images = as_pixels(x)
    labels, names = as_labels(y, class_names, len(images))
    return image_data(_tensor(images), labels, names, mean, std, name, name, can_flip)


def _tensor(images: Pixels) -> torch.Tensor:
    if not (images.flags.writeable and images.flags.c_contiguous):  # torch shares no memory that is read-only
        images = images.copy(order="C")
    return torch.from_numpy(images)


def as_pixels(x: Any) -> Pixels:
    """Any array of images as uint8 (N, C, H, W)."""
    array = _array(x, "images")
    if array.ndim == 3:
        array = array[:, None]
    check(array.ndim == 4, LAYOUTS, array.shape)
    return to_bytes(channels_first(array, LAYOUTS, prefer_first=True))


def _array(x: Any, what: str) -> NDArray[Any]:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        x = x.float() if x.dtype == torch.bfloat16 else x  # which NumPy does not have
        return x.numpy()  # type: ignore[no-any-return]
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError(f"{what} must form one array, but they differ in shape") from None


def channels_first(array: NDArray[Any], rule: str, *, prefer_first: bool) -> NDArray[Any]:
    """(…, C, H, W) from either layout; where both could be meant, the one with square images, then the preferred."""
    rows, middle, last = array.shape[-3:]
    could_be_first, could_be_last = rows in (1, 3), last in (1, 3)
    check(could_be_first or could_be_last, rule, array.shape)
    if could_be_first and could_be_last:
        square_first, square_last = middle == last, rows == middle
        could_be_first = square_first if square_first != square_last else prefer_first
    return array if could_be_first else np.moveaxis(array, -1, -3)


def to_bytes(array: NDArray[Any]) -> Pixels:
    """uint8 pixels as they are, floats in 0..1 rounded to them; anything else is refused."""
    if array.dtype == np.uint8:
        return array
    check(array.dtype.kind == "f", "pixels must be uint8, or floats in 0..1", str(array.dtype))
    pixels = np.empty(array.shape, np.uint8)
    outside, first = 0, None
    for start in range(0, len(array), 1024):
        part = array[start : start + 1024]
        wrong = ~((part >= 0) & (part <= 1))  # written so that NaN is wrong too
        if wrong.any():
            outside += int(wrong.sum())
            first = first or (start, wrong)
        elif not outside:
            pixels[start : start + 1024] = np.rint(part.astype(np.float32) * 255)
    if first:
        row, *rest = (int(i) for i in np.unravel_index(first[1].argmax(), first[1].shape))
        index = (first[0] + row, *rest)
        where = f"{outside} values do not, the first at {index}: {float(array[index])}"
        raise UserError(f"float pixels must lie in 0..1, before any normalisation, but {where}")
    return pixels


def as_labels(y: Any, class_names: Sequence[str] | None, count: int) -> tuple[Labels, tuple[str, ...]]:
    """Labels as int64 and the class names, which are the sorted names in `y` or 0, 1, … where none are given."""
    array = _array(y, "labels")
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    twice = [name for name, times in Counter(map(str, () if class_names is None else class_names)).items() if times > 1]
    check(not twice, "class names must differ", ", ".join(twice))
    check(array.shape == (count,), f"labels must have shape ({count},), one for each image", array.shape)
    if array.dtype.kind in "USO":
        return _named_labels(array.tolist(), class_names)
    check(array.dtype.kind in "iu", "labels must be whole numbers or names", str(array.dtype))
    check(count > 0, "there must be at least one image", count)
    values = np.unique(array)
    low, high = int(values[0]), int(values[-1])
    if low < 0 or (class_names is not None and high >= len(class_names)):
        last = "" if class_names is None else len(class_names) - 1
        raise UserError(f"labels must lie in 0..{last}, but got {low if low < 0 else high}")
    if class_names is None and high >= len(values):
        missing = sorted(set(range(min(high + 1, len(values) + 5))) - set(values.tolist()))[:5]
        more = "" if len(missing) == high + 1 - len(values) else ", …"
        raise UserError(f"labels must be 0..{high} without gaps, but no image has {', '.join(map(str, missing))}{more}")
    names = tuple(map(str, range(high + 1) if class_names is None else class_names))
    labels = array.astype(np.int64)
    check_labels(labels, names, "the set")
    return labels, names


def _named_labels(values: list[Any], class_names: Sequence[str] | None) -> tuple[Labels, tuple[str, ...]]:
    texts = [_text(value) for value in values]
    names = tuple(sorted(set(texts)) if class_names is None else map(str, class_names))
    known = {name: label for label, name in enumerate(names)}
    unknown = next((text for text in texts if text not in known), None)
    check(unknown is None, f"labels must be among the {len(names)} class names", unknown)
    labels = np.array([known[text] for text in texts], np.int64)
    check_labels(labels, names, "the set")
    return labels, names


def _text(value: Any) -> str:
    check(isinstance(value, (str, bytes)), "names must be text", value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_npz(path: Path) -> Raw:
    """x_train, y_train and perhaps x_test, y_test (or images, labels; or x, y) of an .npz file, without pickles."""
    require_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_npz(archive, str(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    # RuntimeError: encrypted; MemoryError: a size that fits the file but not the machine
    except (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is not a readable .npz file: {one_line(error)}") from None


def _read_npz(archive: zipfile.ZipFile, source: str) -> Raw:
    held = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    keys = next((pair for pair in NPZ_KEYS if set(pair) <= set(held)), None)
    if keys is None:
        wanted = " or ".join(", ".join(pair) for pair in NPZ_KEYS)
        raise UserError(f"the file must hold {wanted}, but holds {', '.join(map(repr, held)) or 'nothing'}")
    names = [_text(name) for name in _member(archive, held["class_names"]).flat] if "class_names" in held else None
    images = as_pixels(_member(archive, held[keys[0]]))
    labels, class_names = as_labels(_member(archive, held[keys[1]]), names, len(images))
    tests = {"x_test", "y_test"} & set(held)
    check(len(tests) != 1, "x_test and y_test must come together", sorted(tests))
    if not tests:
        train, test = hold_out(labels, class_names, "the file")
        parts = array_part(images, labels, train), array_part(images, labels, test)
        return Raw(*parts, class_names, f"{source}; {HELD_OUT}")
    test_images = as_pixels(_member(archive, held["x_test"]))
    test_labels, _ = as_labels(_member(archive, held["y_test"]), class_names, len(test_images))
    return Raw(array_part(images, labels), array_part(test_images, test_labels), class_names, source)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """One array of an .npz; what its header promises must be what the archive says it holds, and can hold."""
    check(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), "members must be stored or deflated", info)
    check(info.file_size <= info.compress_size * DEFLATE_MOST, "members must have a size they can have", info.file_size)
    with archive.open(info) as file:
        shape, dtype, header_bytes = npy_header(file)
    if header_bytes + math.prod(shape) * dtype.itemsize != info.file_size:
        raise UserError(
            f"{info.filename} promises {shape} of {dtype}, which is not what its {info.file_size} bytes hold"
        )
    with archive.open(info) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """(shape, dtype, bytes of the header) of a .npy stream; arrays of objects are refused."""
    try:
        version = npy.read_magic(file)
        check(version in ((1, 0), (2, 0)), "the .npy version must be 1.0 or 2.0", version)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    except UserError:
        raise
    except Exception as error:  # a header is parsed as Python text, which can fail in any way
        raise UserError(f"its .npy header cannot be read: {one_line(error)}") from None
    check(not dtype.hasobject and dtype.itemsize > 0, "arrays must be of numbers or text", str(dtype))
    check(all(n >= 0 for n in shape), "an array's shape must not be negative", shape)
    return shape, dtype, file.tell()
