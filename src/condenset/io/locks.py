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
    if sys.platform == "win32":
        return None
    import fcntl

    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


@contextlib.contextmanager
def try_lock(directory: Path) -> Iterator[bool | None]:
    """Try to lock a directory for the duration of the block. The lock also ends with the process.

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
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            has_lock = False
        except OSError:
            has_lock = None
        yield has_lock
    finally:
        os.close(handle)
