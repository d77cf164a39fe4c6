"""The number of CPU threads. It decides how sums are split, and therefore the last bits of a result on a CPU."""

from __future__ import annotations

import contextlib
import os
import threading
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
        num: The number. None: no change. A warning says if the system does not allow as many.
    """
    previous = torch.get_num_threads()
    if num is None or num == previous or not _is_possible(num, previous):
        yield
        return
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def _is_possible(num: int, present: int) -> bool:
    """Return whether the system allows this number of threads; warn if it does not, or if there are fewer cores."""
    cores = os.cpu_count() or 1
    if num <= cores:
        return True
    if not _can_start(num):
        difference = f"it continues with {present}, and its results differ in their last digits"
        warn_user(f"the run began with {num} CPU threads, which this system refuses: {difference}")
        return False
    reason = f"as the run began, for the same result, but this machine has {cores} cores: it is slow"
    warn_user(f"computing with {num} CPU threads, {reason}")
    return True


def _can_start(num: int) -> bool:
    """Return whether the system starts this many threads. PyTorch would end the process if it does not."""
    end, threads = threading.Event(), []
    try:
        for _ in range(num):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        return False
    finally:
        end.set()
        for thread in threads:
            thread.join()
    return True
