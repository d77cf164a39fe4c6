"""What every reader and writer here shares: one-line errors, and folders that appear whole or not at all."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from condenset.errors import UserError, one_line
from condenset.files import held

OLD = 24 * 3600  # seconds; a lock may be unknown to other machines that share the disk


@contextmanager
def guard(action: str) -> Iterator[None]:
    """Turn what the system refuses (no space, no permission, no such file) into `ACTION: why`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{action}: {one_line(error)}") from error


def require_file(path: Path) -> int:
    """The size of a regular file; anything else, a pipe that would block too, is refused."""
    if not path.is_file():
        raise UserError(f"no such file: {path}")
    return path.stat().st_size


@contextmanager
def new_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary folder; what is left in it under target's name becomes `target` when the block succeeds."""
    with guard(f"cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        workshop = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    with held(workshop):
        try:
            yield workshop
            with guard(f"cannot write {target}"):
                _put(workshop, target, overwrite)
                sync_folder(target.parent)
        finally:
            shutil.rmtree(workshop, ignore_errors=True)


def _put(workshop: Path, target: Path, overwrite: bool) -> None:
    """Rename what was made to the target; what it replaces comes back if that fails or is stopped half-way."""
    replaced = workshop / ".replaced"
    try:
        if overwrite and target.exists():
            os.rename(target, replaced)
        os.rename(workshop / target.name, target)
    except BaseException:
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        raise


def restore(home: Path) -> None:
    """Give its name back to what a kill between the two renames of `_put` left without: what was made still lies there.

    Not while a process is at work on it; one on another machine would, at worst, be told that it cannot write.
    """
    for replaced in home.glob(".*.????????.tmp/.replaced"):
        left = replaced.parent
        target = home / left.name[1 : -len(".????????.tmp")]
        with suppress(OSError), held(left) as free:
            if free and not left.is_symlink() and (left / target.name).exists() and not target.exists():
                os.rename(replaced, target)


def _sweep(target: Path) -> None:
    """Remove the temporary folders of this target that a kill left behind: old, held by nobody, not the only copy."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        with suppress(OSError), held(left) as free:
            only_copy = (left / ".replaced").exists() and not target.exists()
            if free and not left.is_symlink() and not only_copy and time.time() - left.stat().st_mtime > OLD:
                shutil.rmtree(left, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder last through a power cut, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
