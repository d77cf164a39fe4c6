"""When kernels are available, and when they are disabled."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from condenset import kernels
from condenset.engine import ComputeDevice
from condenset.engine.cuda_graph import capture_step
from condenset.kernels import runtime
from helpers.graph_replay import capture_on_cpu

pytest.importorskip("triton")
CPU = ComputeDevice.select("cpu")


def test_kernels_of_blocks_can_be_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "available", lambda tensor: True)
    maps = torch.zeros(1, dtype=torch.bfloat16)
    assert kernels.available_for_blocks(maps)
    with kernels.disable_kernels(blocks_only=True), kernels.disable_kernels(blocks_only=True):
        assert not kernels.available_for_blocks(maps)
    assert kernels.available_for_blocks(maps)


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[object] = []
    launches: list[object] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: devices.append(device) or contextlib.nullcontext())  # type: ignore[func-returns-value]
    kernel = {(2,): lambda *args, **options: launches.append((args[1:], options))}
    for name in ("cpu", "cuda:1"):
        runtime.launch(kernel, (2,), SimpleNamespace(device=torch.device(name)), 3, BLOCK=4)
    assert devices == [torch.device("cuda:1")]
    assert launches == [((3,), {"BLOCK": 4})] * 2


@pytest.fixture
def gpu_tensor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a stand-in for a CUDA tensor, in a process where no kernel has failed yet."""
    monkeypatch.setattr(runtime, "_failures", set())
    monkeypatch.setattr(runtime, "_tested_devices", set())
    return SimpleNamespace(device=torch.device("cuda"))


def test_kernels_that_cannot_be_built_are_disabled(gpu_tensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(runtime, "launch", fail)
    with pytest.warns(UserWarning, match="without custom kernels, several times slower: no compiler"):
        assert not kernels.available(gpu_tensor)
    assert not kernels.available(gpu_tensor)


def test_kernels_are_disabled_only_if_a_step_works_without_them(
    gpu_tensor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_on_cpu(monkeypatch)
    runtime._tested_devices.add(gpu_tensor.device)
    monkeypatch.setattr(kernels, "available", lambda _: runtime.available(gpu_tensor))
    state, always_fails = torch.zeros(2), True

    def step() -> None:
        state.add_(1)
        if always_fails or kernels.available(state):
            raise RuntimeError("the step failed")

    with pytest.raises(RuntimeError, match="the step failed"):
        capture_step(step, [state], CPU)
    assert kernels.available(state)
    always_fails, state[:] = False, 0
    with pytest.warns(UserWarning, match="without custom kernels, several times slower: the step failed"):
        replay = capture_step(step, [state], CPU)
    assert state.tolist() == [0, 0] and not kernels.available(state)
    replay()
    assert state.tolist() == [1, 1]
