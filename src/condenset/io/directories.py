"""Create, lock and replace directories. Errors are UserErrors, and leftovers of killed processes are removed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from condenset.errors import UserError, check_path_encoding, format_error
from condenset.io.locks import try_lock

LOCK_ATTEMPTS, LOCK_SECONDS = 3, 0.02  # repeated attempts to lock a directory, and the time between them
SYNC_THREADS = 8  # the system writes files that are synced at the same time together, which is ten times faster
REPLACED = ".replaced"  # in a temporary directory: the directory that the new one replaces


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


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether a path, with symbolic links followed, is a directory or inside it."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


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
            for _ in range(LOCK_ATTEMPTS):  # `is_locked` may hold it for a moment
                if has_lock is False:
                    time.sleep(LOCK_SECONDS)
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
        clean_up_directories(target.parent, glob.escape(target.name))
    with _create_locked(target, prefix=".", suffix=".tmp") as workspace:
        try:
            yield workspace
            with wrap_os_errors(target):
                _move_into_place(workspace, target, overwrite)
                sync_directory(target.parent)
        finally:
            _remove_workspace(workspace, target)


@contextmanager
def temporary_directory(name: str) -> Iterator[Path]:
    """Create a temporary directory for the duration of the block, and remove those that killed processes left.

    Args:
        name: The beginning of its name, which no other program uses.
    """
    parent = Path(tempfile.gettempdir())
    for leftover in parent.glob(f"{name}.????????"):
        with suppress(OSError), try_lock(leftover) as has_lock:
            if _is_abandoned(leftover, has_lock):
                shutil.rmtree(leftover, ignore_errors=True)
    with _create_locked(parent / name) as directory:
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _create_locked(target: Path, prefix: str = "", suffix: str = "") -> Iterator[Path]:
    """Create and lock a temporary directory. Another process may remove it as a leftover before it is locked."""
    with contextlib.ExitStack() as stack:
        is_created = False
        while not is_created:
            with wrap_os_errors(target):
                name = f"{prefix}{target.name}."
                directory = Path(tempfile.mkdtemp(dir=target.parent, prefix=name, suffix=suffix))
            with suppress(FileNotFoundError):
                is_created = stack.enter_context(try_lock(directory)) is not False and directory.exists()
        yield directory


def _is_abandoned(directory: Path, has_lock: bool | None) -> bool:
    """Return whether no process uses a temporary directory. Where the system has no locks, leftovers stay."""
    return has_lock is True and not directory.is_symlink()


def _move_into_place(workspace: Path, target: Path, overwrite: bool) -> None:
    """Rename the new directory to `target`; if that fails or is interrupted, restore the one it replaces."""
    replaced = workspace / REPLACED
    try:
        if overwrite and target.exists():
            os.rename(target, replaced)
        os.rename(workspace / target.name, target)
    except BaseException:
        if _has_only_copy(workspace, target):
            os.rename(replaced, target)
        raise


def _has_only_copy(workspace: Path, target: Path) -> bool:
    """Return whether a temporary directory contains the replaced directory, and the target does not exist."""
    return (workspace / REPLACED).exists() and not target.exists()


def _remove_workspace(workspace: Path, target: Path) -> None:
    if not _has_only_copy(workspace, target):
        shutil.rmtree(workspace, ignore_errors=True)


def clean_up_directories(parent: Path, name: str = "*") -> None:
    """Clean up after processes that were killed during `atomic_directory`.

    A directory that was about to be replaced gets its name back. Temporary directories are removed, except those that a
    running process has locked and those with the only copy of a directory. A process on another machine, whose lock may
    be invisible, would at worst fail with "cannot write to".

    Args:
        parent: The directory that contains the targets.
        name: The name of the target; a glob pattern.
    """
    for workspace in parent.glob(f".{name}.????????.tmp"):
        with suppress(OSError), try_lock(workspace) as has_lock:
            if not _is_abandoned(workspace, has_lock):
                continue
            target = parent / workspace.name[1 : -len(".????????.tmp")]
            if (workspace / target.name).exists() and _has_only_copy(workspace, target):
                os.rename(workspace / REPLACED, target)
            _remove_workspace(workspace, target)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power cut, where the system supports it."""
    if os.name == "posix":
        _sync(directory, os.O_RDONLY)


def sync_contents(directory: Path) -> None:
    """Make all files below a directory survive a power cut, and their names where the system supports it."""
    contents = list(os.walk(directory))
    paths = [Path(parent, name) for parent, _, files in contents for name in files]
    with ThreadPoolExecutor(SYNC_THREADS) as executor:
        list(executor.map(lambda path: _sync(path, os.O_RDWR), paths))  # O_RDWR: Windows cannot sync read-only files
    for parent, _, _ in contents:
        sync_directory(Path(parent))


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
