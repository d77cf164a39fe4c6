"""Locks between processes that share a directory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def is_locked(directory: Path) -> bool | None:
    """Return whether a process holds the lock of a directory. None: the system has no such locks.

    The test takes a shared lock for a moment, which `lock_directory` waits for.
    """
    with try_lock(directory, shared=True) as has_lock:
        return None if has_lock is None else not has_lock


@contextlib.contextmanager
def try_lock(directory: Path, *, shared: bool = False) -> Iterator[bool | None]:
    """Try to lock a directory for the duration of the block. The lock also ends with the process.

    Args:
        directory: The directory.
        shared: Take a lock that several processes can have at once.

    Yields:
        True if this process holds the lock, False if another process does, None if the system has no such locks
        (Windows and some network disks).
    """
    if sys.platform == "win32":
        yield None
        return
    import fcntl

    handle = os.open(directory, os.O_RDONLY)
    try:
        has_lock: bool | None = True
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            has_lock = False
        except OSError:
            has_lock = None
        yield has_lock
    finally:
        os.close(handle)
