"""Reuse the memory that PyTorch frees on a CPU.

By default, glibc returns large blocks to the operating system and requests them again in the next step. The system then
clears every page, which takes longer than most layers.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt
MAX_BLOCK_BYTES = 2**28  # larger blocks, such as datasets, are returned at once
MAX_BLOCK_BYTES_OF_OLD_VERSIONS = 2**25  # glibc refused larger thresholds
MAX_FREE_BYTES = 2**30  # that the process keeps


@functools.cache
def reuse_freed_memory() -> None:
    """Let this process keep up to 1 GiB of freed memory. Has an effect with glibc only, the C library of most Linux."""
    mallopt = _find_function("mallopt")
    if mallopt is None:
        return
    if mallopt(MMAP_THRESHOLD, MAX_BLOCK_BYTES) or mallopt(MMAP_THRESHOLD, MAX_BLOCK_BYTES_OF_OLD_VERSIONS):
        mallopt(TRIM_THRESHOLD, MAX_FREE_BYTES)  # alone it would keep the smaller threshold, which is slower


def return_freed_memory() -> None:
    """Return freed memory to the operating system, so that it does not count as memory of the next job."""
    if malloc_trim := _find_function("malloc_trim"):
        malloc_trim(0)


@functools.cache
def _find_function(name: str) -> Any:
    """Return a function of the C library, or None if it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # TypeError: Windows
        return None
