"""The number of CPU threads. It decides how sums are split, and therefore the last bits of a result on a CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from condenset.errors import check, check_int, warn_user

MAX_THREADS = 1024


def check_threads(value: Any) -> None:
    """Check a number of threads that a file contains. None: unknown."""
    if value is not None:
        check_int("threads", value, 1)
        check(value <= MAX_THREADS, f"threads must be at most {MAX_THREADS}", value)


@contextlib.contextmanager
def use_threads(num: int | None) -> Iterator[None]:
    """Compute with this number of CPU threads in the block, also if the machine has fewer cores.

    Args:
        num: The number. None: no change.
    """
    previous, cores = torch.get_num_threads(), os.cpu_count() or 1
    if num is None or num == previous:
        yield
        return
    if num > cores:
        reason = f"as the run began, for the same result, but this machine has {cores} cores: it is slow"
        warn_user(f"computing with {num} CPU threads, {reason}")
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
