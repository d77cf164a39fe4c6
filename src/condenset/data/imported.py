"""Imported sets: plain .npy files in class order that open at once, however large, because they are memory-mapped."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from condenset.data.arrays import npy_header
from condenset.data.guards import guard, new_folder, require_file, restore, sync_folder
from condenset.data.raw import Labels, Part, PixelStats, Raw, array_part, blocks
from condenset.data.sources import find_source
from condenset.errors import UserError, check, one_line
from condenset.files import write_file
from condenset.types import ImageData, Splits, constants

FORMAT = 1
META = "meta.json"
META_MOST = 1 << 26  # bytes; a thousand long class names take a thousandth of it
SPLITS = ("train", "test")


def imported_folder(folder: Path, name: str) -> Path:
    """Where the imported set of this name lies, or would lie, under the data folder."""
    return _home(folder) / name


def imported_names(folder: Path) -> list[str]:
    """The names of the imported sets under the data folder."""
    home = _home(folder)
    if not home.is_dir():
        return []
    return sorted(entry.name for entry in home.iterdir() if is_imported(entry) and not entry.name.startswith("."))


def _home(folder: Path) -> Path:
    """The folder of the imported sets, where each has its name again if a kill took it."""
    home = folder / "imported"
    restore(home)
    return home


def is_imported(folder: Path) -> bool:
    """Whether a folder is an imported set."""
    return (folder / META).is_file() and (folder / "train-images.npy").is_file()


def check_import_name(name: str) -> None:
    """Refuse a name that could not be a folder or that a known dataset has."""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name) is not None
    check(plain, "a name must be letters, digits, '.', '_' and '-', and begin with a letter or digit", name)
    check(find_source(name) is None, "a name must not be that of a known dataset", name)


def raw_of(splits: Splits) -> Raw:
    """Splits in memory, or memory-mapped, as something that can be imported."""
    train, test = splits.train, splits.test
    parts = [array_part(half.images.numpy(), half.labels.numpy()) for half in (train, test)]
    if test.class_names != train.class_names:
        raise UserError("train and test must have the same class names")
    return Raw(parts[0], parts[1], train.class_names, train.source, train.mean, train.std, train.can_flip)


def write_imported(raw: Raw, target: Path, *, overwrite: bool) -> None:
    """Write a set to the folder `target`, whole or not at all, a block of images at a time."""
    with new_folder(target, overwrite=overwrite) as workshop, guard(f"cannot write {target}"):
        folder = workshop / target.name
        folder.mkdir()
        stats = _write_images(raw.train, folder / "train-images.npy", f"importing {target.name}")
        _write_images(raw.test, folder / "test-images.npy", f"importing {target.name} (test)")
        measured = stats.result()
        meta = {
            "format": FORMAT,
            "name": target.name,
            "source": raw.source,
            "class_names": list(raw.class_names),
            "mean": list(raw.mean or measured[0]),
            "std": list(raw.std or measured[1]),
            "can_flip": raw.can_flip,
        }
        for split, part in zip(SPLITS, (raw.train, raw.test), strict=True):
            buffer = io.BytesIO()
            np.save(buffer, part.labels)
            write_file(folder / f"{split}-labels.npy", buffer.getvalue())
            meta[split] = {"count": part.shape[0], "fingerprint": ""}
        splits = {split: _read_split(folder, split, meta) for split in SPLITS}
        for split, data in splits.items():
            meta[split] = {"count": len(data), "fingerprint": data.fingerprint}
        write_file(folder / META, json.dumps(meta, indent=1).encode())
        sync_folder(folder)


def _write_images(part: Part, path: Path, text: str) -> PixelStats:
    """Write a .npy file in blocks; not through a map, where a full disk would kill the process without a word."""
    stats = PixelStats(part.shape[1])
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": part.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks(part, text):
            stats.add(block)
            file.write(block.data)
        file.flush()
        os.fsync(file.fileno())
    return stats


def read_imported(folder: Path) -> Splits:
    """Open an imported set; pixels stay on disk until they are used."""
    path = folder / META
    check(require_file(path) <= META_MOST, f"{path} must have at most {META_MOST} bytes", path.stat().st_size)
    try:
        meta = json.loads(path.read_bytes())
        if not isinstance(meta, dict) or type(meta.get("format")) is not int:
            raise UserError("it must be an object with a 'format'")
        if meta["format"] > FORMAT:
            raise UserError(f"it was written by a newer condenset (format {meta['format']}); upgrade to read it")
        _check_meta(meta)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None
    train, test = (_read_split(folder, split, meta) for split in SPLITS)
    return Splits(train=train, test=test)


def _check_meta(meta: dict[str, Any]) -> None:
    names = meta.get("class_names")
    named = isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)
    check(named, "class_names must be a list of names", type(names).__name__)
    check(type(meta.get("can_flip")) is bool, "can_flip must be true or false", meta.get("can_flip"))
    for key in ("name", "source"):
        check(isinstance(meta.get(key), str), f"{key} must be text", meta.get(key))
    for split in SPLITS:
        half = meta.get(split)
        check(isinstance(half, dict), f"{split} must be an object", half)
        assert isinstance(half, dict)
        check(
            type(half.get("count")) is int and half["count"] > 0, f"{split}'s count must be above 0", half.get("count")
        )
        text = half.get("fingerprint")
        check(isinstance(text, str) and bool(re.fullmatch("[0-9a-f]{16}", text)), "a fingerprint must be 16 hex", text)


def _read_split(folder: Path, split: str, meta: dict[str, Any]) -> ImageData:
    path, count, names = folder / f"{split}-images.npy", meta[split]["count"], tuple(meta["class_names"])
    images = map_npy(path, np.dtype(np.uint8), 4)
    labels = map_npy(folder / f"{split}-labels.npy", np.dtype(np.int64), 1).clone()
    check(len(images) == len(labels) == count, f"{path} must hold {count} images with a label each", len(images))
    counts = _class_counts(labels.numpy(), folder / f"{split}-labels.npy", len(names))
    check(min(counts) > 0, f"{path} must hold an image of every class", names[counts.index(0)] if 0 in counts else "")
    try:
        return ImageData(
            images=images,
            labels=labels,
            class_names=names,
            mean=constants("mean", meta.get("mean")),
            std=constants("std", meta.get("std")),
            name=meta["name"],
            source=meta["source"],
            can_flip=meta["can_flip"],
            known_fingerprint=meta[split]["fingerprint"],
        )
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def _class_counts(labels: Labels, path: Path, num_classes: int) -> list[int]:
    ordered = (
        len(labels) > 0 and labels[0] >= 0 and labels[-1] < num_classes and bool((labels[1:] >= labels[:-1]).all())
    )
    check(bool(ordered), f"{path} must hold ascending labels in 0..{num_classes - 1}", "others")
    return [int(n) for n in np.bincount(labels, minlength=num_classes)]


def map_npy(path: Path, dtype: np.dtype[Any], dims: int) -> torch.Tensor:
    """A .npy file as a tensor whose bytes stay on disk; its header must say exactly what the file holds."""
    size = require_file(path)
    try:
        with path.open("rb") as file:
            shape, found, offset = npy_header(file)
        if found != dtype or len(shape) != dims or offset + math.prod(shape) * dtype.itemsize != size:
            raise UserError(f"its header promises {shape} of {found}, which is not what {size} bytes should hold")
        check(0 not in shape, "an array must not be empty", shape)
        try:
            array = np.memmap(path, dtype, "c", offset, shape)
        except OSError:  # a private map counts as memory that may be wanted, and there may not be so much
            array = np.memmap(path, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def verify_imported(splits: Splits) -> None:
    """Read every pixel of an imported set and compare with the fingerprint it was written with."""
    for split, data in zip(SPLITS, (splits.train, splits.test), strict=True):
        found = dataclasses.replace(data, known_fingerprint="").fingerprint
        if found != data.known_fingerprint:
            wanted = f"must have the fingerprint {data.known_fingerprint}, but got {found}"
            raise UserError(f"the {split} images of {data.name} {wanted}; import the set again")
