"""Steps that a GPU replays as a captured graph ask nothing of the host: seen on tensors that have no values at all."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from condenset.engine import Place
from condenset.engine.step import accelerate, compiled
from condenset.methods.common import images_per_class
from condenset.methods.gradient import GradientMatching
from condenset.methods.labels import Labels
from condenset.methods.matching import Matching, mean_distance
from condenset.methods.pixels import kernel_distance
from condenset.methods.unrolled import Unrolled
from condenset.presets import make_recipe
from condenset.recipes import KERNELS, Protocol
from condenset.runs import Run
from condenset.train import Forgetting, Trainer, TrainingSet
from plain import tiny_data

CPU = Place.best("cpu")
META = torch.device("meta")
EQUAL, UNEQUAL = [6, 6, 6], [6, 2, 5]


class NoHostTensors(TorchDispatchMode):
    """Refuses operations on tensors of the host; a scalar is part of a launch, unless it is copied."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, Tensor) and leaf.device != META:
                assert leaf.dim() == 0 and "copy" not in func.name(), f"{func.name()} has a tensor of the host"
        return out


class NoHostNumbers(TorchFunctionMode):
    """Refuses tensors made of numbers of the host, which would have to be sent over."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func in (torch.tensor, torch.as_tensor, torch.from_numpy) and not isinstance(args[0], Tensor)
        assert not made, f"{func.__name__} takes numbers from the host"
        return func(*args, **(kwargs or {}))


def without_values(value: Any, seen: dict[int, Any]) -> Any:
    """The same object with all its tensors, however deep, on the meta device."""
    if isinstance(value, torch.device):
        return META
    if isinstance(value, Place):
        return Place(META, value.dtype)
    if isinstance(value, Tensor):
        if id(value) not in seen:
            seen[id(value)] = (value.to(META), value)
        return seen[id(value)][0]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(without_values(each, seen) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(without_values(each, seen) for each in value)
    if isinstance(value, dict):
        return {key: without_values(each, seen) for key, each in value.items()}
    if isinstance(value, nn.Module):
        return value.to(META)
    if type(value).__module__.startswith("condenset.") and hasattr(value, "__dict__") and id(value) not in seen:
        seen[id(value)] = value
        for name, each in vars(value).items():
            object.__setattr__(value, name, without_values(each, seen))
    return value


def watch(owner: Any, *steps: Callable[[], None]) -> None:
    without_values(owner, {})
    assert owner is None or owner.clock.device == META
    for step in steps:
        with NoHostNumbers(), NoHostTensors():  # asking for a value, or for a shape that hangs on one, fails by itself
            step()


def problem(kind: Any, method: str, counts: list[int], *more: Any, **fields: Any) -> Any:
    data = tiny_data(counts)
    fields = {"ipc": 3, "allow_fewer": True, "batch": 5, **fields}
    recipe = make_recipe(method, name="tiny", size=8, **fields)
    if kind is Matching:
        return Matching(data, [recipe], Run(place=CPU), *more)
    return kind(data, recipe, Run(place=CPU), images_per_class(data, recipe), *more)


@pytest.mark.parametrize("counts", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_methods_with_a_network(counts: list[int], norm: str) -> None:
    network = f"convnet(width=8, depth=2, norm={norm!r})"
    dm = problem(Matching, "dm", counts, mean_distance, network=network)
    watch(dm, dm.step)
    dd = problem(Unrolled, "dd", counts, network=network, steps=2, epochs=2)
    watch(dd, dd.step)
    ld = problem(Labels, "ld", counts, network=network)
    watch(ld, ld.step)
    for method in ("dc", "dsa"):
        matching = problem(GradientMatching, method, counts, network=network)
        trainer = matching.trainer
        step = functools.partial(trainer._step, torch.arange(4, device=META))
        watch(matching, matching.draw_network, matching.match, trainer._shuffle, step)


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_pixels(kernel: str) -> None:
    for counts in (EQUAL, UNEQUAL):
        matching = problem(Matching, "mmd", counts, kernel_distance(kernel, 2.0), kernel=kernel)
        watch(matching, matching.step)


def test_training_while_forgetting_is_counted() -> None:
    data = TrainingSet.of(tiny_data(EQUAL), CPU.device)
    seen = Forgetting(len(data), CPU.device)
    trainer = Trainer("convnet(width=8, depth=2)", data, Protocol(), CPU, forgetting=seen)
    watch(trainer, trainer._shuffle, lambda: trainer._step(torch.arange(4, device=META)))


class FailedCapture:
    """`torch.cuda.graph` as it is where a step asks something of the host."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = []
    for name in ("Stream", "current_stream", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "graph", FailedCapture)
    state = torch.zeros(2)

    def add() -> None:
        state.add_(1)

    with pytest.warns(UserWarning, match="without a captured graph, several times slower: operation not permitted"):
        step = accelerate(add, [state], Place(torch.device("cuda"), torch.float32))
    assert state.tolist() == [0, 0]
    step()
    assert state.tolist() == [1, 1]
    assert len(streams) == 1


def test_the_watch_sees() -> None:
    some = torch.zeros(3, device=META)
    for wrong in (
        lambda: some.sum().item(),
        lambda: some.nonzero(),
        lambda: some[some > 0],
        lambda: some + torch.tensor([1.0, 2.0, 3.0], device=META),
        lambda: some * torch.as_tensor(2.0, device=META),
        lambda: torch.repeat_interleave(some, torch.zeros(3, dtype=torch.int64, device=META)),
        lambda: some.copy_(torch.ones(3)),
        lambda: some[0].copy_(torch.ones(())),
    ):
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            watch(None, wrong)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("no compiler")])
def test_without_a_compiler_it_goes_on_plainly_but_not_when_memory_runs_out(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    add = compiled(lambda x: x + 1, Place(torch.device("cuda"), torch.float32))
    if isinstance(error, torch.OutOfMemoryError):
        for _ in range(2):  # nor is it switched off for what comes after
            with pytest.raises(torch.OutOfMemoryError):
                add(1)
        return
    with pytest.warns(UserWarning, match="running without the compiler, several times slower: no compiler"):
        assert add(1) == 2
    assert add(1) == 2
