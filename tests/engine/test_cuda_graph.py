"""Capturing a step: what it restores, keeps alive and does if it fails."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from condenset.engine import ComputeDevice
from condenset.engine.cuda_graph import capture_parts, capture_step
from helpers.graph_replay import capture_on_cpu

CPU = ComputeDevice.select("cpu")


class FailedCapture:
    """`torch.cuda.graph` for a step that needs the host."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_without_cuda_the_step_is_returned() -> None:
    def step() -> None: ...

    assert capture_step(step, [torch.zeros(1)], CPU) is step


def test_capturing_leaves_the_state_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_on_cpu(monkeypatch)
    state = torch.zeros(2)

    def add() -> None:
        state.add_(1)

    step = capture_step(add, [state], CPU)
    assert state.tolist() == [0, 0]
    step()
    assert state.tolist() == [1, 1]


def test_parts_of_a_step_are_captured_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = capture_on_cpu(monkeypatch)
    source, state = torch.ones(2), torch.zeros(2)

    def add() -> None:
        state.add_(source)

    def double() -> None:
        state.mul_(2)

    parts = capture_parts([add, double], [state], CPU)
    assert len(graphs) == 2 and state.tolist() == [0, 0]
    source.copy_(torch.tensor([3.0, 4.0]))  # the host works before and between the parts
    parts[0]()
    state.add_(1)
    parts[1]()
    assert state.tolist() == [8, 10]


def test_if_a_part_cannot_be_captured_all_parts_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_on_cpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "graph", FailedCapture)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    state = torch.zeros(1)
    parts = [lambda: state.add_(1), lambda: state.mul_(2)]
    with pytest.warns(UserWarning, match="running without a captured graph"):
        assert capture_parts(parts, [state], CPU) == parts
    assert state.tolist() == [0]


def test_a_captured_step_keeps_its_inputs_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has only the addresses of its inputs. Freed memory would be reused by then."""
    capture_on_cpu(monkeypatch)
    state, amount = torch.zeros(2), torch.ones(2)
    reference = weakref.ref(amount)

    def add(amount: Tensor = amount) -> None:
        state.add_(amount)

    step = capture_step(add, [state], CPU)
    del amount, add
    assert reference() is not None
    step()
    assert state.tolist() == [1, 1]
    del step
    assert reference() is None


def test_no_garbage_is_collected_during_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_on_cpu(monkeypatch)
    state = torch.zeros(1)
    enabled: list[bool] = []

    def step() -> None:
        state.add_(1)
        enabled.append(gc.isenabled())

    capture_step(step, [state], CPU)
    assert enabled == [True, True, True, False]
    assert gc.isenabled()


def test_a_step_that_cannot_be_captured_runs_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: list[object] = []
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: MagicMock())
    for name in ("stream", "device"):
        monkeypatch.setattr(torch.cuda, name, lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "graph", FailedCapture)
    state = torch.zeros(2)

    def add() -> None:
        state.add_(1)

    with pytest.warns(UserWarning, match="without a captured graph, several times slower: operation not permitted"):
        step = capture_step(add, [state], ComputeDevice(torch.device("cuda"), torch.float32))
    assert state.tolist() == [0, 0]
    step()
    assert state.tolist() == [1, 1]
    assert len(streams) == 1
