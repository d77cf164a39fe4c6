"""Write an import block by block. An import that was stopped or killed continues after its last complete block."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from condenset import __version__
from condenset.data.folders.image_decoding import UnreadableImageError
from condenset.data.folders.image_files import raise_first, unreadable_error, warn_about_unreadable
from condenset.data.import_journal import (
    ImportJournal,
    clear_directory,
    lock_partial_directory,
    partial_directory,
)
from condenset.data.lazy import LazyDataset, LazySplit, Pixels, PixelStats, Rows, images_per_block, iter_blocks
from condenset.data.memmap import BAD_IMAGES, write_memmap_metadata
from condenset.errors import escape_controls, is_int
from condenset.io.directories import atomic_directory, remove_temporary_files, sync_directory, wrap_os_errors
from condenset.io.files import json_hash, write_file
from condenset.io.progress import print_notice

MAX_NAMED_FILES = 10  # unreadable files in a warning

OpenDataset = Callable[[Mapping[str, str]], LazyDataset]


def write_import(
    open_dataset: OpenDataset,
    target: Path,
    *,
    arguments: Mapping[str, object],
    skip_bad: bool = False,
    overwrite: bool = False,
    verbose: bool = True,
) -> None:
    """Write a dataset to the directory `target`, completely or not at all.

    Args:
        open_dataset: Open the dataset without these unreadable files.
        target: The directory.
        arguments: What the import depends on, besides the files. An import with other arguments starts again.
        skip_bad: Leave out unreadable image files. Otherwise they are an error, after all files have been read.
        overwrite: Replace an imported dataset, and do not continue an earlier import.
        verbose: Show progress.
    """
    excluded = {} if overwrite else ImportJournal.read(partial_directory(target)).excluded
    dataset = open_dataset(excluded)
    identity = "" if overwrite else _identify(dataset, arguments)
    with lock_partial_directory(target) as partial, wrap_os_errors(target):
        journal = ImportJournal() if overwrite else ImportJournal.read(partial)
        can_continue = bool(identity) and journal.identity == identity and journal.excluded == excluded
        if not (can_continue and _has_images(dataset, partial / target.name, journal)):
            journal = _restart(partial, identity)
            dataset = open_dataset({}) if excluded else dataset
        _write_images(dataset, partial, target.name, journal, verbose=verbose)
        while journal.unreadable:
            _check_readable({**dataset.scan.unreadable, **journal.unreadable}, skip_bad)
            journal = _restart(partial, identity, {**journal.excluded, **journal.unreadable})
            dataset = open_dataset(journal.excluded)
            _write_images(dataset, partial, target.name, journal, verbose=verbose)
        _check_readable(dataset.scan.unreadable, skip_bad)
        directory = partial / target.name
        stats = PixelStats(dataset.train.shape[1])
        stats.counts = torch.tensor(journal.pixel_counts)
        _write_bad_images(dataset.scan.unreadable, directory)
        write_memmap_metadata(dataset, directory, target, stats)
        with atomic_directory(target, overwrite=overwrite) as workspace:
            os.rename(directory, workspace / target.name)
    hint = f"; all are named in {target / BAD_IMAGES}"
    warn_about_unreadable(dataset.scan.unreadable, MAX_NAMED_FILES, hint)


def _identify(dataset: LazyDataset, arguments: Mapping[str, object]) -> str:
    """Return a hash of all that the written files depend on; empty if the files of the dataset are not hashed."""
    files_hash, block_size = dataset.scan.files_hash, images_per_block(dataset.train.shape)
    return files_hash and json_hash([__version__, block_size, files_hash, dict(arguments)])


def _has_images(dataset: LazyDataset, directory: Path, journal: ImportJournal) -> bool:
    """Return whether the files of an import contain the images that are in its journal."""
    for name, rows in journal.rows.items():
        split, path = dataset.splits.get(name), directory / f"{name}-images.npy"
        if split is None or not is_int(rows) or not 0 < rows <= split.shape[0] or not path.is_file():
            return False
        if path.stat().st_size < len(_npy_header(split)) + rows * math.prod(split.shape[1:]):
            return False
    return True


def _restart(partial: Path, identity: str, excluded: Mapping[str, str] | None = None) -> ImportJournal:
    clear_directory(partial)
    journal = ImportJournal(identity=identity, excluded=dict(excluded or {}))
    if excluded:  # it took a pass over all files to find them
        journal.write(partial)
    return journal


def _check_readable(unreadable: Mapping[str, str], skip_bad: bool) -> None:
    if not skip_bad and len(unreadable) == 1:
        raise_first({path: UnreadableImageError(reason) for path, reason in unreadable.items()}, all_failed=False)
    if not skip_bad and unreadable:
        raise unreadable_error(unreadable)


def _write_bad_images(unreadable: Mapping[str, str], directory: Path) -> None:
    if unreadable:
        lines = (f"{escape_controls(reason)}\n" for reason in unreadable.values())
        write_file(directory / BAD_IMAGES, "".join(lines).encode(errors="backslashreplace"))


def _write_images(dataset: LazyDataset, partial: Path, name: str, journal: ImportJournal, *, verbose: bool) -> None:
    """Write the images of all splits that are not written yet, and record unreadable files in the journal."""
    directory = partial / name
    directory.mkdir(exist_ok=True)
    remove_temporary_files(directory, ["*"])
    done, total = sum(journal.rows.values()), sum(split.shape[0] for split in dataset.splits.values())
    if done:
        print_notice(f"importing {name}: continuing at image {min(done + 1, total):,} of {total:,}", verbose=verbose)
    for split_name, split in dataset.splits.items():
        description = f"importing {name}" if split_name == "train" else f"importing {name} ({split_name})"
        path = directory / f"{split_name}-images.npy"
        _write_split(_collect_errors(split, journal), split_name, path, partial, journal, description, verbose)


def _collect_errors(split: LazySplit, journal: ImportJournal) -> LazySplit:
    """Return a split that records unreadable files in the journal instead of raising an error."""

    def fill(out: Pixels, rows: Rows) -> None:
        try:
            split.fill(out, rows)
        except UnreadableImageError as error:
            if not error.unreadable:
                raise
            journal.unreadable |= error.unreadable

    return dataclasses.replace(split, fill=fill)


def _write_split(
    split: LazySplit, name: str, path: Path, partial: Path, journal: ImportJournal, description: str, verbose: bool
) -> None:
    """Write a .npy file block by block, after the blocks in the journal.

    Writing through a memory map would kill the process if the disk is full.
    """
    stats = PixelStats(split.shape[1])
    if name == "train" and journal.pixel_counts:
        stats.counts = torch.tensor(journal.pixel_counts)
    done = journal.rows.get(name, 0)
    with path.open("r+b" if done else "wb") as file:
        file.write(_npy_header(split))
        file.truncate(file.tell() + done * math.prod(split.shape[1:]))
        file.seek(0, os.SEEK_END)
        for block in iter_blocks(split, description, start=done, verbose=verbose):
            file.write(block.data)
            file.flush()
            os.fsync(file.fileno())
            done += len(block)
            journal.rows[name] = done
            if name == "train":
                stats.add(block)
                journal.pixel_counts = stats.counts.tolist()
            journal.write(partial)
    sync_directory(path.parent)


def _npy_header(split: LazySplit) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": split.shape})
    return buffer.getvalue()
