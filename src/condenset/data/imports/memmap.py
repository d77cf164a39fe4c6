"""Memory-mapped datasets: .npy files in class order that open at once, whatever their size."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from condenset.data.datasets.sources import find_registered_name
from condenset.data.image_data import ImageData, Splits, check_channel_stats, check_test_differs
from condenset.data.imports.import_journal import remove_dead_imports
from condenset.data.reading.lazy import Labels, LazyDataset, LazySplit, make_lazy_split, measure_pixels
from condenset.data.reading.npy_files import read_npy_header
from condenset.data.stores.mapped_file import to_tensor
from condenset.errors import UserError, check, check_type, format_error, is_int
from condenset.io.directories import clean_up_directories, sync_directory
from condenset.io.files import open_file, write_file
from condenset.io.metadata import read_json

MEMMAP_FORMAT = 1  # version of the file format
METADATA_FILE = "meta.json"
BAD_IMAGES = "bad-images.txt"  # the files that an import left out, with the reason
SPLITS = ("train", "test")


def memmap_directory(data_dir: Path, name: str) -> Path:
    """Return the directory of the memory-mapped dataset of this name, which need not exist."""
    return _imports_directory(data_dir) / name


def list_memmaps(data_dir: Path) -> list[str]:
    """Return the names of the memory-mapped datasets in the data directory."""
    parent = _imports_directory(data_dir)
    if not parent.is_dir():
        return []
    return sorted(path.name for path in parent.iterdir() if is_memmap(path) and not path.name.startswith("."))


def _imports_directory(data_dir: Path) -> Path:
    """Return the directory of all imported datasets, after cleaning up what a killed import left."""
    parent = data_dir / "imported"
    clean_up_directories(parent)
    remove_dead_imports(parent)
    return parent


def is_memmap(directory: Path) -> bool:
    """Return whether a directory contains a memory-mapped dataset."""
    return (directory / METADATA_FILE).is_file() and (directory / "train-images.npy").is_file()


def check_import_name(name: object) -> None:
    """Check that a name is a valid directory name and that no registered dataset has it."""
    check_type(name, str, "a name must be text")
    assert isinstance(name, str)
    is_valid = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None
    rule = "a name must consist of at most 100 letters, digits, '.', '_' and '-', and begin with a letter or digit"
    check(is_valid, rule, name)
    check(find_registered_name(name) is None, "a name must not be that of a registered dataset", name)


def to_lazy_dataset(splits: Splits) -> LazyDataset:
    """Return splits that are in memory, or memory-mapped, as a lazy dataset."""
    train, test = splits.train, splits.test
    if test is not None and test.class_names != train.class_names:
        raise UserError("train and test must have the same class names")
    return LazyDataset(
        _to_lazy_split(train),
        None if test is None else _to_lazy_split(test),
        train.class_names,
        train.source,
        train.mean,
        train.std,
        train.allow_hflip,
    )


def _to_lazy_split(data: ImageData) -> LazySplit:
    return dataclasses.replace(make_lazy_split(data.images.numpy(), data.labels.numpy()), data=data)


def write_memmap_metadata(dataset: LazyDataset, directory: Path, target: Path) -> None:
    """Complete a dataset whose images are written: write the labels and the metadata, and check all files.

    Args:
        dataset: The dataset.
        directory: Where its images are.
        target: The directory that it becomes, for its name and for error messages.
    """
    mean, std = dataset.mean, dataset.std
    if mean is None or std is None:
        measured = measure_pixels(map_npy(directory / "train-images.npy", np.dtype(np.uint8), 4))
        mean, std = mean or measured[0], std or measured[1]
    metadata = {
        "format": MEMMAP_FORMAT,
        "name": target.name,
        "source": dataset.source,
        "class_names": list(dataset.class_names),
        "mean": list(mean),
        "std": list(std),
        "allow_hflip": dataset.allow_hflip,
    }
    for name, split in dataset.splits.items():
        buffer = io.BytesIO()
        np.save(buffer, split.labels)
        write_file(directory / f"{name}-labels.npy", buffer.getvalue())
        metadata[name] = {"count": split.shape[0], "fingerprint": ""}
    try:
        splits = {name: _read_split(directory, name, metadata) for name in dataset.splits}
    except UserError as error:
        raise UserError(str(error).replace(str(directory), str(target))) from None
    check_test_differs(Splits(**splits))
    for name, data in splits.items():
        metadata[name] = {"count": len(data), "fingerprint": data.fingerprint}
    write_file(directory / METADATA_FILE, json.dumps(metadata, indent=1).encode())
    sync_directory(directory)


def read_memmap(directory: Path) -> LazyDataset:
    """Open a memory-mapped dataset; pixels stay on disk until they are used."""
    path, hint = directory / METADATA_FILE, "import the dataset again"
    description = "the metadata of an imported dataset"
    metadata = read_json(path, description, hint=hint, is_valid=lambda value: isinstance(value, dict))
    if is_int(version := metadata.get("format")) and version > MEMMAP_FORMAT:
        raise UserError(f"{path} was written by a newer version of condenset (format {version}); upgrade to read it")
    if not _has_valid_types(metadata):
        raise UserError(f"{path} is not {description}; {hint}")
    splits = {name: _read_split(directory, name, metadata) for name in SPLITS if name in metadata}
    return to_lazy_dataset(Splits(**splits))


def _has_valid_types(metadata: dict[str, Any]) -> bool:
    """Return whether the fields of metadata have their types. The values are checked with the images and labels."""
    names: Any = metadata.get("class_names")
    splits: list[Any] = [metadata.get("train"), metadata.get("test", metadata.get("train"))]
    if not isinstance(names, list) or not names or not all(isinstance(split, dict) for split in splits):
        return False
    texts = [metadata.get("name"), metadata.get("source"), *names, *(split.get("fingerprint") for split in splits)]
    counts = [metadata.get("format"), *(split.get("count") for split in splits)]
    are_valid = all(isinstance(text, str) for text in texts) and all(is_int(count) for count in counts)
    return are_valid and isinstance(metadata.get("allow_hflip"), bool)


def _read_split(directory: Path, name: str, metadata: dict[str, Any]) -> ImageData:
    path, label_path = directory / f"{name}-images.npy", directory / f"{name}-labels.npy"
    count, class_names = metadata[name]["count"], tuple(metadata["class_names"])
    images = map_npy(path, np.dtype(np.uint8), 4)
    labels = map_npy(label_path, np.dtype(np.int64), 1).clone()
    check(len(images) == len(labels) == count, f"{path} must have {count} images with one label each", len(images))
    _check_sorted_labels(labels.numpy(), label_path, class_names, allow_empty=name == "test")
    try:
        return ImageData(
            images=images,
            labels=labels,
            class_names=class_names,
            mean=check_channel_stats("mean", metadata.get("mean")),
            std=check_channel_stats("std", metadata.get("std")),
            name=metadata["name"],
            source=metadata["source"],
            allow_hflip=metadata["allow_hflip"],
            stored_fingerprint=metadata[name]["fingerprint"],
            file=str(path),
        )
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None


def _check_sorted_labels(labels: Labels, path: Path, class_names: tuple[str, ...], *, allow_empty: bool) -> None:
    num_classes = len(class_names)
    in_range = len(labels) > 0 and labels[0] >= 0 and labels[-1] < num_classes
    is_sorted = in_range and bool((labels[1:] >= labels[:-1]).all())
    if not is_sorted:
        raise UserError(f"{path} must have ascending labels in 0..{num_classes - 1}; import the dataset again")
    counts = [int(count) for count in np.bincount(labels, minlength=num_classes)]
    if 0 in counts and not allow_empty:
        raise UserError(f"{path} must have an image of every class, but has none of {class_names[counts.index(0)]!r}")


def map_npy(path: Path, dtype: np.dtype[Any], dims: int) -> torch.Tensor:
    """Return a .npy file as a memory-mapped tensor; its header must agree with the size of the file."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            shape, file_dtype, offset = read_npy_header(file)
            if file_dtype != dtype or len(shape) != dims or offset + math.prod(shape) * dtype.itemsize != size:
                content = f"shape {shape} of {file_dtype}, which does not fit its {size} bytes"
                raise UserError(f"its header declares {content}")
            check(0 not in shape, "an array must not be empty", shape)
            try:
                array = np.memmap(file, dtype, "c", offset, shape)
            except OSError:  # a private map counts towards the memory limit of the process
                array = np.memmap(file, dtype, "r", offset, shape)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {format_error(error)}") from None
    return to_tensor(array)


def map_images(file: Path, fingerprint: str) -> torch.Tensor | None:
    """Return the memory-mapped images of a file, or None if it does not exist or has other images.

    Args:
        file: The .npy file of a split of a memory-mapped dataset.
        fingerprint: The fingerprint of the images.
    """
    split, path = file.name.removesuffix("-images.npy"), file.parent / METADATA_FILE
    if not (file.is_file() and path.is_file()):
        return None
    metadata = read_json(path, "the metadata of an imported dataset")
    stored = metadata.get(split) if isinstance(metadata, dict) else None
    if not isinstance(stored, dict) or stored.get("fingerprint") != fingerprint:
        return None
    return map_npy(file, np.dtype(np.uint8), 4)


def verify_memmap(dataset: LazyDataset) -> None:
    """Read every pixel of the splits that are memory-mapped, and compare it with the stored fingerprints."""
    for name, split in dataset.splits.items():
        data = split.data
        if data is None:
            continue
        fingerprint = dataclasses.replace(data, stored_fingerprint="").fingerprint
        if fingerprint != data.stored_fingerprint:
            rule = f"must have the fingerprint {data.stored_fingerprint}, but got {fingerprint}"
            raise UserError(f"the {name} images of {data.name} {rule}; import the dataset again")
