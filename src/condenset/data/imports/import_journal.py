"""The journal of an import in progress: which blocks are written, so that the same command can continue."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from condenset.errors import UserError
from condenset.io.directories import lock_directory, wrap_os_errors
from condenset.io.files import write_file
from condenset.io.locks import try_lock
from condenset.io.metadata import read_json

JOURNAL = "journal.json"


def partial_directory(target: Path) -> Path:
    """Return the hidden directory of an import in progress. It never counts as a dataset."""
    return target.with_name(f".{target.name}.partial")


def can_continue_import(target: Path) -> bool:
    """Return whether a stopped import to the directory `target` continues if it is repeated."""
    return (partial_directory(target) / JOURNAL).exists()


def write_journal(directory: Path, identity: str, rows: Mapping[str, int]) -> None:
    """Record the number of images that an import has written by split, if it has an identity."""
    if identity:
        write_file(directory / JOURNAL, json.dumps({"identity": identity, "rows": rows}).encode())


def read_journal(directory: Path, identity: str) -> dict[str, Any]:
    """Return the number of images by split; empty if there is no journal, if it is damaged or of another import."""
    with contextlib.suppress(UserError):
        journal = read_json(directory / JOURNAL, "a journal", is_valid=lambda value: isinstance(value, dict))
        rows = journal.get("rows")
        if identity and journal.get("identity") == identity and isinstance(rows, dict):
            return rows
    return {}


@contextlib.contextmanager
def lock_partial_directory(target: Path) -> Iterator[Path]:
    """Create the directory of an import in progress, and lock it for the duration of the block.

    It is removed afterwards, unless the block was interrupted or the disk failed, and the journal allows to continue.
    """
    directory = partial_directory(target)
    with wrap_os_errors(target):
        directory.mkdir(parents=True, exist_ok=True)
    with lock_directory(directory):
        try:
            yield directory
        except BaseException as error:
            is_final = isinstance(error, UserError) and not isinstance(error.__cause__, OSError)
            if is_final or not (directory / JOURNAL).exists():
                shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)


def remove_dead_imports(parent: Path) -> None:
    """Remove the directories of killed imports that cannot be continued."""
    for directory in parent.glob(".*.partial"):
        with contextlib.suppress(OSError), try_lock(directory) as has_lock:
            if has_lock and not directory.is_symlink() and not (directory / JOURNAL).exists():
                shutil.rmtree(directory, ignore_errors=True)


def clear_directory(directory: Path) -> None:
    """Remove everything in a directory, but not the directory, which may be locked."""
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
