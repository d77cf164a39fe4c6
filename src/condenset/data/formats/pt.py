"""PyTorch: the .pt layout that repositories of the field exchange, a dict with `data`: [[images, labels], …].

The images are normalised. Published files often do not say with which constants.
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from condenset.data.formats.content import SetContent, add_metadata, parse_metadata
from condenset.data.image_data import check_dense
from condenset.data.transform import normalize
from condenset.errors import UserError, check, check_int, option
from condenset.io.files import check_memory, open_file, write_file

METADATA_KEY = "condenset"
KINDS = ("images", "labels")
LAYOUTS = "a dict with 'data', a list [images, labels], or one file with images and one with labels"
NUMPY_NAMES = (  # of numbers and arrays in pickles, by versions of NumPy
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.dtypes.Float64DType",
    "numpy.dtypes.Float32DType",
    "numpy.dtypes.Int64DType",
)


class _IgnoredValue:
    """Replaces NumPy values in a file, such as accuracies, which are not needed."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def write_pt(content: SetContent, path: Path) -> None:
    """Write `{"data": [[normalised images, labels]]}`, and all metadata as JSON text in "condenset"."""
    assert content.mean is not None and content.std is not None
    images = normalize(torch.from_numpy(content.images), tuple(content.mean), tuple(content.std))
    buffer = io.BytesIO()
    data = [[images, torch.from_numpy(content.labels)]]
    torch.save({"data": data, METADATA_KEY: content.to_json()}, buffer)
    write_file(path, buffer.getvalue())


def read_pt(paths: Sequence[Path], index: int | None = None) -> SetContent:
    """Read one set of a .pt file, or images and labels of two files.

    Args:
        paths: One file, or the file of the images and the file of the labels.
        index: Which set of a file with several, from 0.
    """
    names = ", ".join(map(str, paths))
    check(len(paths) <= 2, "a set must be one .pt file, or one with images and one with labels", names)
    values = [_load(path) for path in paths]
    metadata = {}
    if len(paths) == 1 and isinstance(values[0], dict) and isinstance(values[0].get(METADATA_KEY), str):
        metadata = parse_metadata(values[0][METADATA_KEY], paths[0])
    pair = _select_pair(values[0] if len(values) == 1 else values, names, index)
    images, labels = (_to_tensor(f"the {kind} in {names}", tensor) for kind, tensor in zip(KINDS, pair, strict=True))
    check(images.is_floating_point(), f"the images in {names} must be floats", str(images.dtype))
    return add_metadata(images.numpy(), labels.numpy(), metadata, is_normalized=True)


def _select_pair(value: Any, names: str, index: int | None) -> Sequence[Any]:
    """Return [images, labels] of the content of a file."""
    if isinstance(value, dict):
        keys = ", ".join(repr(key) for key in list(value)[:5])
        value = value.get("data")
        if value is None:
            raise UserError(f"{names} must contain {LAYOUTS}, but contains a dict with the keys {keys}")
    if _is_pair(value) and all(isinstance(item, Tensor) for item in value):
        check(index in (None, 0), f"{option('index')} must be 0, because {names} has one set", index)
        return list(value)
    is_list = isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_pair, value))
    if not is_list:
        raise UserError(f"{names} must contain {LAYOUTS}, but contains a {type(value).__name__}")
    if index is None and len(value) > 1:
        numbers = f"0 to {len(value) - 1}"
        raise UserError(f"{names} has {len(value)} sets: choose one of {numbers} with {option('index', 0)}")
    return list(value[check_int("index", index or 0, 0, len(value) - 1)])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _to_tensor(name: str, tensor: Any) -> Tensor:
    """Check a tensor and return it in contiguous memory, floats as float32."""
    check_dense(name, tensor)
    assert isinstance(tensor, Tensor)
    stored, needed = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    check(needed <= stored, f"{name} must have one stored number per element", tuple(tensor.shape))
    check(not tensor.is_complex(), f"{name} must be real numbers", str(tensor.dtype))
    return (tensor.detach().float() if tensor.is_floating_point() else tensor.detach()).contiguous()


def _load(path: Path) -> Any:
    """Load a file that contains tensors, numbers, text, lists and dicts only."""
    with open_file(path) as file:
        _check_archive(path, file)
        file.seek(0)
        safe_values: list[Any] = [(_IgnoredValue, name) for name in NUMPY_NAMES]
        with _wrap_torch_errors(path), torch.serialization.safe_globals(safe_values), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TorchScript and old types of storage
            return torch.load(file, map_location="cpu", weights_only=True)


def _check_archive(path: Path, file: Any) -> None:
    """Check that a file is a zip archive of PyTorch, and that its records are no larger than the file."""
    size = os.fstat(file.fileno()).st_size
    check_memory(path, size)
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile):
        raise UserError(
            f"{path} is not a .pt file of PyTorch 1.6 or newer: save it again with torch.save in a newer version"
        ) from None
    for record in records:
        name = PurePosixPath(record.filename)
        check(".." not in name.parts and not name.is_absolute(), f"records in {path} must have plain names", str(name))
        is_stored = record.compress_type == zipfile.ZIP_STORED and record.file_size == record.compress_size
        check(is_stored, f"records in {path} must not be compressed", record.filename)
    total = sum(record.file_size for record in records)
    check(total <= size, f"the records in {path} must fit its {size} bytes", total)


@contextlib.contextmanager
def _wrap_torch_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception:  # a damaged or malicious file can fail in any way; PyTorch advises to trust it
        content = "tensors, numbers, text, lists and dicts"
        raise UserError(
            f"{path} must be a complete file that contains only {content}: nothing else is loaded"
        ) from None
