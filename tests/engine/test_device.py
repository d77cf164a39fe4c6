"""Selecting a device and measuring its memory."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import condenset as cs
from condenset.engine import ComputeDevice

CPU = ComputeDevice.select("cpu")


def test_peak_memory_is_in_bytes_and_can_be_reset() -> None:
    array = np.ones(2**28, np.uint8)  # not a tensor, because PyTorch's allocator may not return freed memory
    before = CPU.peak_memory()
    assert 2**28 < before < 2**40
    del array
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return
    CPU.reset_peak_memory()
    assert CPU.peak_memory() < before - 2**27


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "Device 'cuda' is not available: this machine has cpu."),
        ("cuda:3", "Device 'cuda:3' is not available: this machine has cpu."),
        ("cpu:1", "Device 'cpu:1' is not available: this machine has cpu:0."),
        ("xla", "device must be one of cpu, cuda, mps, but got 'xla'"),
        ("gpu", "device cannot be 'gpu'; did you mean 'cuda'?"),
        ("gpu:0", "device cannot be 'gpu:0'; did you mean 'cuda'?"),
    ],
)
def test_unavailable_devices_are_refused(device: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(cs.UserError) as caught:
        ComputeDevice.select(device)
    assert str(caught.value).startswith(message)


def test_an_unavailable_gpu_index_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(cs.UserError, match="Device 'cuda:2' is not available: this machine has cuda:0 to cuda:1"):
        ComputeDevice.select("cuda:2")


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_selecting_a_gpu_sets_the_precision_but_not_the_current_device(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    current_devices: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "set_device", current_devices.append)
    for device in ("cuda", "cuda:1"):
        compute = ComputeDevice.select(device)
        assert (compute.device, compute.precision) == (torch.device(device), precision)
    assert current_devices == []


def test_activate_makes_a_gpu_current_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []

    class FakeDevice:
        def __init__(self, device: torch.device) -> None:
            events.append(device)

        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            events.append("end")

    monkeypatch.setattr(torch.cuda, "device", FakeDevice)
    with CPU.activate():
        assert events == []
    with ComputeDevice(torch.device("cuda:1"), torch.float32).activate():
        assert events == [torch.device("cuda:1")]
    assert events[1:] == ["end"]
