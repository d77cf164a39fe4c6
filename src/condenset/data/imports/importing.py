"""Write an import block by block. An import that was stopped or killed continues after its last complete block."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from condenset import __version__
from condenset.data.folders.image_files import warn_about_unreadable
from condenset.data.imports.import_journal import clear_directory, lock_partial_directory, read_journal, write_journal
from condenset.data.imports.memmap import BAD_IMAGES, write_memmap_metadata
from condenset.data.reading.lazy import LazyDataset, LazySplit, images_per_block, iter_blocks
from condenset.errors import escape_controls, is_int
from condenset.io.directories import atomic_directory, remove_temporary_files, sync_directory, wrap_os_errors
from condenset.io.files import json_hash, write_file
from condenset.io.progress import print_notice, show_progress

MAX_NAMED_FILES = 10  # unreadable files in a warning


def write_import(
    dataset: LazyDataset,
    target: Path,
    *,
    arguments: Mapping[str, object],
    overwrite: bool = False,
) -> None:
    """Write a dataset to the directory `target`, completely or not at all.

    Args:
        dataset: The dataset.
        target: The directory.
        arguments: What the import depends on, besides the files. An import with other arguments starts again.
        overwrite: Replace an imported dataset, and do not continue an earlier import.
    """
    unreadable = dataset.scan.unreadable
    identity = "" if overwrite else _identify(dataset, arguments)
    with lock_partial_directory(target) as partial, wrap_os_errors(target):
        directory = partial / target.name
        rows = read_journal(partial, identity)
        if not _has_images(dataset, directory, rows):
            rows.clear()
            clear_directory(partial)
        _write_images(dataset, directory, rows, identity)
        if unreadable:
            lines = (f"{escape_controls(reason)}\n" for reason in unreadable.values())
            write_file(directory / BAD_IMAGES, "".join(lines).encode(errors="backslashreplace"))
        write_memmap_metadata(dataset, directory, target)
        with atomic_directory(target, overwrite=overwrite) as workspace:
            os.rename(directory, workspace / target.name)
    warn_about_unreadable(unreadable, MAX_NAMED_FILES, f"; all are named in {target / BAD_IMAGES}")


def _identify(dataset: LazyDataset, arguments: Mapping[str, object]) -> str:
    """Return a hash of all that the written files depend on; empty if the dataset is not read from image files."""
    paths, block_size = dataset.scan.readable, images_per_block(dataset.train.shape)
    return json_hash([__version__, block_size, _hash_files(paths), dict(arguments)]) if paths else ""


def _hash_files(paths: Sequence[str]) -> str:
    """Return a hash of the names, sizes and times of files."""
    digest = hashlib.blake2b(digest_size=16)
    with show_progress("checking file times", len(paths)) as advance:
        for path in paths:
            identity = "missing"
            with contextlib.suppress(OSError):
                status = os.stat(path)
                identity = f"{status.st_size} {status.st_mtime_ns}"
            digest.update(os.fsencode(path) + f"\0{identity}\0".encode())
            advance(1)
    return digest.hexdigest()


def _has_images(dataset: LazyDataset, directory: Path, rows: Mapping[str, Any]) -> bool:
    """Return whether the files of an import contain the images that are in its journal."""
    for name, count in rows.items():
        split, path = dataset.splits.get(name), directory / f"{name}-images.npy"
        if split is None or not is_int(count) or not 0 < count <= split.shape[0] or not path.is_file():
            return False
        if path.stat().st_size < len(_npy_header(split)) + count * math.prod(split.shape[1:]):
            return False
    return bool(rows)


def _write_images(dataset: LazyDataset, directory: Path, rows: dict[str, int], identity: str) -> None:
    """Write the images that are not in `rows` yet."""
    directory.mkdir(exist_ok=True)
    remove_temporary_files(directory, ["*"])
    name = directory.name
    done, total = sum(rows.values()), sum(split.shape[0] for split in dataset.splits.values())
    if done:
        print_notice(f"importing {name}: continuing at image {min(done + 1, total):,} of {total:,}")
    for split_name, split in dataset.splits.items():
        description = f"importing {name}" if split_name == "train" else f"importing {name} ({split_name})"
        start = rows.get(split_name, 0)
        # Writing through a memory map would kill the process if the disk is full.
        with (directory / f"{split_name}-images.npy").open("r+b" if start else "wb") as file:
            file.write(_npy_header(split))
            file.truncate(file.tell() + start * math.prod(split.shape[1:]))
            file.seek(0, os.SEEK_END)
            for block in iter_blocks(split, description, start=start):
                file.write(block.data)
                file.flush()
                os.fsync(file.fileno())
                rows[split_name] = rows.get(split_name, 0) + len(block)
                write_journal(directory.parent, identity, rows)
    sync_directory(directory)


def _npy_header(split: LazySplit) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": split.shape})
    return buffer.getvalue()
