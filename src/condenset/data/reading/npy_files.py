"""Read .npy and .npz files without pickles, after checking sizes against the file."""

from __future__ import annotations

import contextlib
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from condenset.data.reading.arrays import as_labels, as_pixels, fit_pixels, to_integers, to_text
from condenset.data.reading.lazy import LazyDataset, LazySplit, make_lazy_split
from condenset.data.reading.options import ARRAY_OPTIONS, LoadOptions
from condenset.errors import UserError, check, format_error
from condenset.io.files import MAX_DEFLATE_RATIO, check_memory, open_file

NPZ_KEYS = (("x_train", "y_train"), ("images", "labels"), ("x", "y"))


def read_npz(path: Path, options: LoadOptions) -> LazyDataset:
    """Read x_train, y_train and optionally x_test, y_test (or images, labels; or x, y) of an .npz file."""
    with _open_archive(path) as archive:
        train, test, class_names = _read_npz(archive, options)
    return LazyDataset(train, test, class_names, str(path), used_options=ARRAY_OPTIONS)


def read_npz_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file that have one of these names."""
    with _open_archive(path) as archive:
        members = _list_members(archive)
        return {name: _read_member(archive, members[name]) for name in names if name in members}


@contextlib.contextmanager
def _open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an .npz file; errors in the block are UserErrors that name the file."""
    with open_file(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        # RuntimeError: an encrypted file. MemoryError: a size that matches the file but exceeds the memory.
        except (OSError, EOFError, ValueError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"{path} is not a readable .npz file: {format_error(error)}") from None


def _list_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def _read_npz(archive: zipfile.ZipFile, options: LoadOptions) -> tuple[LazySplit, LazySplit | None, tuple[str, ...]]:
    members = _list_members(archive)
    keys = next((pair for pair in NPZ_KEYS if set(pair) <= set(members)), None)
    if keys is None:
        valid = " or ".join(", ".join(pair) for pair in NPZ_KEYS)
        raise UserError(f"the file must contain {valid}, but contains {', '.join(map(repr, members)) or 'nothing'}")
    names = None
    if "class_names" in members:
        names = [to_text(name) for name in _read_member(archive, members["class_names"]).flat]
    images = fit_pixels(as_pixels(_read_member(archive, members[keys[0]])), options)
    labels, class_names = as_labels(_read_member(archive, members[keys[1]]), names, len(images))
    test_keys = {"x_test", "y_test"} & set(members)
    check(len(test_keys) != 1, "x_test and y_test must both be given, or neither", sorted(test_keys))
    train, test = make_lazy_split(images, labels), None
    if test_keys:
        test_images = fit_pixels(as_pixels(_read_member(archive, members["x_test"])), options)
        test_values = _read_member(archive, members["y_test"])
        if names is None:  # numbers are class names then
            test_values = to_integers(test_values)
            test_values = test_values.astype(str) if test_values.dtype.kind in "iub" else test_values
        test_labels, _ = as_labels(test_values, class_names, len(test_images))
        test = make_lazy_split(test_images, test_labels)
    return train, test, class_names


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array of an .npz file; its header must agree with the size of the archive member."""
    check(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), "members must be stored or deflated", info)
    is_possible = info.file_size <= info.compress_size * MAX_DEFLATE_RATIO
    check(is_possible, "members must have a size that their compressed data can have", info.file_size)
    with archive.open(info) as file:
        return read_array(file, info.filename, info.file_size)


def read_array(file: IO[bytes], name: str, num_bytes: int) -> NDArray[Any]:
    """Read a .npy stream of a known size; its header must agree with the size.

    Args:
        file: The stream, at its beginning.
        name: The name of the array in messages.
        num_bytes: The size of the stream.
    """
    shape, dtype, header_bytes = read_npy_header(file)
    if header_bytes + math.prod(shape) * dtype.itemsize != num_bytes:
        content = f"its {num_bytes} bytes contain something else"
        raise UserError(f"the header of {name} declares shape {shape} of {dtype}, but {content}")
    check_memory(name, num_bytes)
    file.seek(0)
    array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return (shape, dtype, header size in bytes) of a .npy stream; raise a UserError for arrays of objects."""
    try:
        version = npy.read_magic(file)
        check(version in ((1, 0), (2, 0)), "the .npy version must be 1.0 or 2.0", version)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    except UserError:
        raise
    except Exception as error:  # the header is parsed as a Python literal, which can fail in any way
        raise UserError(f"its .npy header cannot be read: {format_error(error)}") from None
    check(not dtype.hasobject and dtype.itemsize > 0, "arrays must be of numbers or text", str(dtype))
    check(all(n >= 0 for n in shape), "the shape of an array must not be negative", shape)
    return shape, dtype, file.tell()
