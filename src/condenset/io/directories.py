"""Create, lock and replace directories. Errors are UserErrors, and leftovers of killed processes are removed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from condenset.errors import UserError, check_path_encoding, format_error
from condenset.io.locks import try_lock

LEFTOVER_SECONDS = 24 * 3600  # where the system has no locks, a leftover may belong to a process for this long


@contextmanager
def wrap_os_errors(path: str | os.PathLike[str], action: str = "write to") -> Iterator[None]:
    """Turn an operating system error in the block into the UserError `cannot ACTION PATH: REASON`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {action} {error.filename2 or path}: {format_error(error)}") from error


def ensure_writable(directory: Path) -> None:
    """Create a directory if it does not exist, and check that files can be created in it."""
    check_path_encoding(directory)
    with wrap_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()


def is_empty(directory: Path) -> bool:
    """Return whether a directory does not exist or contains only hidden files."""
    with wrap_os_errors(directory, "read"):
        return not directory.is_dir() or all(path.name.startswith(".") for path in directory.iterdir())


def create_unique_directory(directory: Path) -> Path:
    """Create `directory`, or the first of `directory-2`, `directory-3`, … that does not exist."""
    check_path_encoding(directory)
    with wrap_os_errors(directory):
        while True:
            path = find_unique_directory(directory)
            with contextlib.suppress(FileExistsError):  # created by another process since
                path.mkdir(parents=True)
                return path


def find_unique_directory(directory: Path) -> Path:
    """Return `directory`, or the first of `directory-2`, `directory-3`, … that does not exist."""
    number, path = 1, directory
    while os.path.lexists(path):
        number += 1
        path = directory.with_name(f"{directory.name}-{number}")
    return path


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock a directory to write to it in the block.

    Raises:
        UserError: Another process holds the lock, or the directory contains a symbolic link.
    """
    with contextlib.ExitStack() as stack:
        with wrap_os_errors(directory):
            has_lock = stack.enter_context(try_lock(directory))
        if has_lock is False:
            raise UserError(f"another process is using {directory}: wait until it ends, or stop it")
        check_no_links(directory)
        yield


def check_no_links(directory: Path) -> None:
    """Raise a UserError if a directory contains a symbolic link, through which other files would be changed."""
    for parent, directories, files in os.walk(directory):
        for path in (os.path.join(parent, name) for name in (*directories, *files)):
            if os.path.islink(path):
                raise UserError(f"{directory} must not contain symbolic links, but got {path}: remove it")


def find_temporary_files(directory: Path, names: Iterable[str]) -> list[Path]:
    """Return the temporary files that `write_file` leaves behind when the process is killed.

    Args:
        directory: The directory to search.
        names: Names of the files written, relative to `directory`; glob patterns such as "sets/*.safetensors".
    """
    patterns = [Path(name).parent / f".{Path(name).name}.*.tmp" for name in names]
    return [path for pattern in patterns for path in directory.glob(str(pattern))]


def remove_temporary_files(directory: Path, names: Iterable[str]) -> None:
    """Remove what `find_temporary_files` returns."""
    for path in find_temporary_files(directory, names):
        path.unlink(missing_ok=True)


@contextmanager
def atomic_directory(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Create a directory completely or not at all.

    Yields:
        A temporary directory. The block creates a directory (or file) named `target.name` in it, which becomes
        `target` when the block succeeds.
    """
    with wrap_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
    with _create_workspace(target) as workspace:
        try:
            yield workspace
            with wrap_os_errors(target):
                _move_into_place(workspace, target, overwrite)
                sync_directory(target.parent)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _create_workspace(target: Path) -> Iterator[Path]:
    """Create and lock a temporary directory. Another process may remove it as a leftover before it is locked."""
    with contextlib.ExitStack() as stack:
        has_workspace = False
        while not has_workspace:
            with wrap_os_errors(target):
                workspace = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
            with suppress(FileNotFoundError):
                has_workspace = stack.enter_context(try_lock(workspace)) is not False and workspace.exists()
        yield workspace


def _move_into_place(workspace: Path, target: Path, overwrite: bool) -> None:
    """Rename the new directory to `target`; if that fails or is interrupted, restore the one it replaces."""
    replaced = workspace / ".replaced"
    try:
        if overwrite and target.exists():
            os.rename(target, replaced)
        os.rename(workspace / target.name, target)
    except BaseException:
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        raise


def restore_replaced(parent: Path) -> None:
    """Restore directories that lost their name because a process was killed during `atomic_directory`.

    Directories that a running process has locked stay as they are. A process on another machine, whose lock may be
    invisible, would at worst fail with "cannot write to".
    """
    for replaced in parent.glob(".*.????????.tmp/.replaced"):
        workspace = replaced.parent
        target = parent / workspace.name[1 : -len(".????????.tmp")]
        with suppress(OSError), try_lock(workspace) as has_lock:
            if has_lock and not workspace.is_symlink() and (workspace / target.name).exists() and not target.exists():
                os.rename(replaced, target)


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary directories of this target that killed processes left, unless one has the only copy."""
    for workspace in target.parent.glob(f".{glob.escape(target.name)}.????????.tmp"):
        with suppress(OSError), try_lock(workspace) as has_lock:
            is_only_copy = (workspace / ".replaced").exists() and not target.exists()
            is_old = time.time() - workspace.stat().st_mtime > LEFTOVER_SECONDS
            is_leftover = has_lock or (has_lock is None and is_old)
            if is_leftover and not workspace.is_symlink() and not is_only_copy:
                shutil.rmtree(workspace, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power cut, where the system supports it."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
