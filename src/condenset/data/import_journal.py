"""The journal of an import in progress: which blocks are written, so that the same command can continue."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from condenset.data.folders.image_decoding import UnreadableImageError
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import read_file, write_file
from condenset.io.locks import try_lock

JOURNAL = "journal.json"
MAX_JOURNAL_BYTES = 1 << 28  # a million unreadable files


@dataclass
class ImportJournal:
    """What an import has done so far. It is written after every block.

    Attributes:
        identity: A hash of the arguments and of the files. Empty: the import cannot be continued.
        rows: Number of images written, by split.
        pixel_counts: Counts of the pixel values of the training images, by channel.
        unreadable: Files that could not be decoded, with the reason. Their rows contain no image.
        excluded: Files that are left out, because an earlier attempt could not decode them.
    """

    identity: str = ""
    rows: dict[str, int] = field(default_factory=dict)
    pixel_counts: list[list[int]] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> ImportJournal:
        """Return the journal in a directory; an empty one if there is none, or if it is damaged."""
        with contextlib.suppress(UserError, ValueError, TypeError, RecursionError):
            journal = cls(**json.loads(read_file(directory / JOURNAL, MAX_JOURNAL_BYTES)))
            types = {"identity": str, "rows": dict, "pixel_counts": list, "unreadable": dict, "excluded": dict}
            if all(isinstance(getattr(journal, name), kind) for name, kind in types.items()):
                return journal
        return cls()

    def write(self, directory: Path) -> None:
        """Replace the journal in a directory, if the import can be continued."""
        if self.identity:
            write_file(directory / JOURNAL, json.dumps(vars(self)).encode())


def partial_directory(target: Path) -> Path:
    """Return the hidden directory of an import in progress. It never counts as a dataset."""
    return target.with_name(f".{target.name}.partial")


def can_continue_import(target: Path) -> bool:
    """Return whether a stopped import to the directory `target` continues if it is repeated."""
    return (partial_directory(target) / JOURNAL).exists()


@contextlib.contextmanager
def lock_partial_directory(target: Path) -> Iterator[Path]:
    """Create the directory of an import in progress, and lock it for the duration of the block.

    It is removed afterwards, unless the block was interrupted, the disk failed or image files are unreadable, and the
    journal allows to continue.
    """
    directory = partial_directory(target)
    with contextlib.ExitStack() as stack:
        has_lock: bool | None = False
        with wrap_os_errors(target):
            while not has_lock:
                directory.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # removed by a process that has just ended
                    has_lock = stack.enter_context(try_lock(directory))
                    if has_lock is False and directory.exists():
                        raise UserError(f"another process is importing {target.name}: wait until it ends, or stop it")
                    has_lock = directory.exists()
        try:
            yield directory
        except BaseException as error:
            if not (_can_continue(error) and (directory / JOURNAL).exists()):
                shutil.rmtree(directory, ignore_errors=True)
            raise
        shutil.rmtree(directory, ignore_errors=True)


def remove_dead_imports(parent: Path) -> None:
    """Remove the directories of killed imports that cannot be continued."""
    for directory in parent.glob(".*.partial"):
        with contextlib.suppress(OSError), try_lock(directory) as has_lock:
            if has_lock and not directory.is_symlink() and not (directory / JOURNAL).exists():
                shutil.rmtree(directory, ignore_errors=True)


def _can_continue(error: BaseException) -> bool:
    """Return whether the same command can succeed after an error."""
    is_final = isinstance(error, UserError) and not isinstance(error.__cause__, OSError)
    return not is_final or isinstance(error, UnreadableImageError)


def clear_directory(directory: Path) -> None:
    """Remove everything in a directory, but not the directory, which may be locked."""
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
