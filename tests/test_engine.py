"""Where work runs: what it leaves, what it took, and devices that are not there."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.continual import Memory
from condenset.engine import Place
from condenset.engine.step import _captured
from condenset.files import read_tensors, write_tensors
from condenset.methods import METHODS
from condenset.methods.pool_training import train_pool
from condenset.methods.pools import Pool
from plain import tiny_data
from replayed import capture_on_cpu

CPU = Place.best("cpu")


SPEC = "convnet(width=4, depth=1)"


def test_a_bound_reaches_the_condensing_of_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int | None] = []
    random = METHODS["random"]
    monkeypatch.setitem(
        METHODS, "random", lambda data, recipe, run: (seen.append(run.memory), random(data, recipe, run))[1]
    )
    data = tiny_data([6, 6])
    memory = Memory(ipc=1, method="random", device="cpu", memory="1GiB", on_repeat="merge")
    memory.add(data)
    memory.save(tmp_path / "a.safetensors")
    Memory.load(tmp_path / "a.safetensors", device="cpu", memory=2**20).add(data)
    assert seen == [2**30, 2**20]


def test_a_pool_with_nan_is_refused_and_other_networks_are_another_pool(tmp_path: Path) -> None:
    data = tiny_data([10, 10])
    pool = train_pool(data, tmp_path / "pool", num=1, network=SPEC, epochs=1, device="cpu")
    file = tmp_path / "pool/0000.safetensors"
    tensors, metadata = read_tensors(file)
    tensors["weights"][0, 0] = torch.nan
    write_tensors(file, tensors, metadata)
    with pytest.raises(cs.UserError, match=r"0000\.safetensors holds other weights"):
        cs.condense(data, ipc=1, pool=pool, network=SPEC, iterations=1, device="cpu")
    meta = metadata["pool"].replace('"step": ', '"step": 1')  # trained elsewhere: another machine rounds otherwise
    write_tensors(file, tensors, {"pool": meta})
    assert Pool.load(tmp_path / "pool").fingerprint != pool.fingerprint


def test_trying_a_step_out_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_on_cpu(monkeypatch)
    state = torch.zeros(2)

    def add() -> None:
        state.add_(1)

    step = _captured(add, [state], CPU.device)
    assert state.tolist() == [0, 0]
    step()
    assert state.tolist() == [1, 1]


def test_a_captured_step_keeps_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph has only the address of what it reads: memory that nobody owned would be somebody else's by then."""
    capture_on_cpu(monkeypatch)
    state, amount = torch.zeros(2), torch.ones(2)
    reads = weakref.ref(amount)

    def add(amount: Tensor = amount) -> None:
        state.add_(amount)

    step = _captured(add, [state], CPU.device)
    del amount, add
    assert reads() is not None
    step()
    assert state.tolist() == [1, 1]
    del step
    assert reads() is None


def test_peak_memory_is_in_bytes_and_can_be_forgotten() -> None:
    big = np.ones(2**28, np.uint8)  # not torch's, whose allocator may keep what is freed
    before = CPU.peak_memory()
    assert 2**28 < before < 2**40
    del big
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return
    CPU.reset_peak_memory()
    assert CPU.peak_memory() < before - 2**27


def test_a_device_that_is_not_there_is_told_by_its_number() -> None:
    with pytest.raises(cs.UserError, match="device 'cpu:1' is not there: of cpu this machine has 1"):
        Place.best("cpu:1")


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")])
def test_a_gpu_without_bfloat16_computes_in_float32(
    capability: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert Place.best("cuda").precision == precision
    assert current == []
    assert Place.best("cuda:1").precision == precision
    assert current == [torch.device("cuda:1")]  # else kernels would run on the first
