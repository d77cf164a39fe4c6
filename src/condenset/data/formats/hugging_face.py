"""Hugging Face: a dataset that `datasets.load_from_disk` reads, with a dataset card."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condenset.data.formats.card import make_card
from condenset.data.formats.content import METADATA, SetContent, add_metadata, read_directory_metadata
from condenset.data.formats.png import encode_images
from condenset.errors import UserError, check, format_error, warn_user
from condenset.io.files import check_memory, read_file

INSTALL = "install it with: pip install 'condenset[hf]'"
MAX_BYTES = 1 << 40  # of an Arrow file; the memory of the machine is the limit
RECORD_BATCH = 3  # type of a message of Arrow
COMPRESSION = 3  # field of a record batch


def write_hugging_face(content: SetContent, directory: Path, *, verbose: bool) -> None:
    """Write the columns `image` (PNG), `label`, `pixels` (exact values) and, for soft labels, `soft_label`."""
    datasets = _import("datasets")
    assert content.class_names is not None
    num_classes = len(content.class_names)
    files = encode_images(content.pixels_NHWC, verbose=verbose)
    columns: dict[str, Any] = {
        "image": [{"bytes": file, "path": None} for file in files],
        "label": content.hard_labels,
        "pixels": list(content.images),
    }
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=_make_distinct(content.class_names)),
        "pixels": datasets.Array3D(content.images.shape[1:], "float32"),
    }
    if content.labels.ndim == 2:
        columns["soft_label"] = content.labels
        features["soft_label"] = datasets.List(datasets.Value("float32"), length=num_classes)
    were_disabled = datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        dataset = datasets.Dataset.from_dict(columns, datasets.Features(features))
        dataset.save_to_disk(directory)
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
    (directory / METADATA).write_text(content.to_json("hf"), encoding="utf-8")
    (directory / "README.md").write_text(make_card(content), encoding="utf-8")


def _make_distinct(names: Sequence[str]) -> list[str]:
    """Return the names of a ClassLabel, which can be any text but must differ. A repeated name gets its number."""
    distinct: list[str] = []
    for number, original in enumerate(names):
        name = original
        while name in distinct:
            name = f"{name} ({number})"
        if name != original:
            text = f"class names of a Hugging Face dataset must differ: {original!r} is written as {name!r}"
            warn_user(text)
        distinct.append(name)
    return distinct


def read_hugging_face(directory: Path) -> SetContent:
    """Read the columns `pixels` and `label` or `soft_label` of the Arrow files in a directory."""
    metadata = read_directory_metadata(directory)
    paths = sorted(directory.glob("data-*.arrow"))
    check(bool(paths), f"{directory} must contain a dataset, data-*.arrow", [])
    tables = [_read_table(path) for path in paths]
    shape = metadata.get("images")
    is_shape = isinstance(shape, list) and len(shape) == 4 and all(isinstance(n, int) and 0 < n < 2**40 for n in shape)
    check(is_shape, f"images in the metadata of {directory} must be a shape (N, C, H, W)", shape)
    assert isinstance(shape, list)
    name = "soft_label" if "soft_label" in tables[0].column_names else "label"
    images = _read_column(tables, "pixels", directory).astype(np.float32, copy=False)
    labels = _read_column(tables, name, directory)
    is_complete = len(images) == np.prod(shape, dtype=object) and len(labels) % shape[0] == 0
    check(is_complete, f"{directory} must contain images of the shape {tuple(shape)}", len(images))
    return add_metadata(images.reshape(shape), labels if name == "label" else labels.reshape(shape[0], -1), metadata)


def _read_table(path: Path) -> Any:
    """Read an Arrow stream. Compressed data, whose size is unknown before they are read, are refused."""
    pyarrow, ipc = _import("pyarrow"), _import("pyarrow.ipc")
    content = read_file(path, MAX_BYTES)
    check_memory(path, len(content))
    try:
        for message in ipc.MessageReader.open_stream(content):
            check(message.type in ("schema", "record batch"), f"{path} must contain plain record batches", message.type)
            check(not _is_compressed(message), f"{path} must not be compressed", message.type)
        table = ipc.open_stream(content).read_all()
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is not a readable Arrow file: {format_error(error)}") from None
    return table


def _is_compressed(message: Any) -> bool:
    """Return whether a message is a record batch with the field `compression` (Arrow's Message.fbs)."""
    if message.type != "record batch":
        return False
    header = message.metadata.to_pybytes()
    (root,) = struct.unpack_from("<I", header, 0)
    field = root + _field_offset(header, root, 2)
    (offset,) = struct.unpack_from("<I", header, field)
    return _field_offset(header, field + offset, COMPRESSION) != 0


def _field_offset(header: bytes, table: int, field: int) -> int:
    """Return the offset of a field in a table of a flatbuffer; 0 if the field is absent."""
    (distance,) = struct.unpack_from("<i", header, table)
    vtable = table - distance
    (size,) = struct.unpack_from("<H", header, vtable)
    if 4 + 2 * field + 2 > size:
        return 0
    return int(struct.unpack_from("<H", header, vtable + 4 + 2 * field)[0])


def _read_column(tables: list[Any], name: str, directory: Path) -> NDArray[Any]:
    """Return the numbers of a column, flattened. Other types can be far larger in memory than in the file."""
    types, parts = _import("pyarrow.types"), []
    list_types = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    for table in tables:
        check(name in table.column_names, f"the dataset in {directory} must have the column {name}", table.column_names)
        for chunk in table.column(name).chunks:
            values = getattr(chunk, "storage", chunk)
            while any(is_list(values.type) for is_list in list_types):
                values = values.flatten()
            is_number = types.is_integer(values.type) or types.is_floating(values.type)
            check(is_number, f"the column {name} in {directory} must be numbers", str(values.type))
            check(values.null_count == 0, f"the column {name} in {directory} must have no missing values", None)
            parts.append(values.to_numpy())
    return np.concatenate(parts) if parts else np.zeros(0)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"Hugging Face sets need the package {name.split('.')[0]}: {INSTALL}") from None
