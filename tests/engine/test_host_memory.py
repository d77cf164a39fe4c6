"""Memory that PyTorch frees on a CPU is used again, and returned between jobs."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import pytest
import torch

from condenset.engine import ComputeDevice, host_memory

NUM_BYTES = 2**26
needs_glibc = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc"
)


def resident_bytes() -> int:
    """Return the memory that this process occupies."""
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])


@needs_glibc
def test_a_cpu_reuses_freed_memory() -> None:
    ComputeDevice.select("cpu")
    images = torch.ones(NUM_BYTES // 4)
    new_pages = []
    for _ in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.relu(images).add(1)
        new_pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert sum(new_pages[10:]) < 4 * NUM_BYTES / resource.getpagesize()  # 20 times as many if each tensor got new pages


@needs_glibc
def test_freed_memory_does_not_count_for_the_next_job() -> None:
    compute = ComputeDevice.select("cpu")
    torch.ones(NUM_BYTES // 4)
    before = resident_bytes()
    compute.reset_peak_memory()
    assert resident_bytes() < before - NUM_BYTES // 2


@pytest.mark.parametrize(("largest", "accepted"), [(2**40, 2**28), (2**25, 2**25), (0, None)])
def test_old_versions_of_glibc_refuse_large_blocks(
    largest: int, accepted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = dict[int, int]()

    def mallopt(parameter: int, value: int) -> int:
        if parameter == host_memory.MMAP_THRESHOLD and value > largest:
            return 0
        values[parameter] = value
        return 1

    monkeypatch.setattr(host_memory, "_find_function", {"mallopt": mallopt}.get)
    host_memory.reuse_freed_memory.__wrapped__()
    assert values.get(host_memory.MMAP_THRESHOLD) == accepted
    assert (host_memory.TRIM_THRESHOLD in values) == (accepted is not None)
