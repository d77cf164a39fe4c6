"""Capture a step as a CUDA graph, which replays all of its kernels with one launch."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from condenset import kernels
from condenset.engine.device import ComputeDevice
from condenset.errors import warn_user

WARMUP_STEPS = 2  # after the first: libraries select their kernels, and the allocator settles


def capture_step(step: Callable[[], None], state: Sequence[Tensor], compute: ComputeDevice) -> Callable[[], None]:
    """Return the same step as a captured graph on CUDA, and the step itself on other devices.

    Args:
        step: A function that reads and writes tensors at fixed addresses and needs nothing from the host.
        state: All tensors that the step changes. They are restored after the warm-up.
        compute: Device and precision.
    """
    return capture_parts([step], state, compute)[0]


def capture_parts(
    parts: Sequence[Callable[[], None]], state: Sequence[Tensor], compute: ComputeDevice
) -> list[Callable[[], None]]:
    """Capture a step in parts, between which the host may work. The graphs share memory, so they run in this order.

    Args:
        parts: Functions as in `capture_step`. One passes tensors to the next only through tensors of the state.
        state: All tensors that the parts change. They are restored after the warm-up.
        compute: Device and precision.
    """
    if not supports_graphs(compute.device):
        return list(parts)
    with compute.activate():
        return _capture(parts, state, compute.device)


def supports_graphs(device: torch.device) -> bool:
    """Return whether steps can be captured on this device."""
    return device.type == "cuda"


def _capture(
    parts: Sequence[Callable[[], None]], state: Sequence[Tensor], device: torch.device
) -> list[Callable[[], None]]:
    """Warm up and capture the parts of a step; if one cannot be captured, warn and return the parts themselves."""
    initial = [tensor.clone() for tensor in state]

    def restore() -> None:
        for tensor, value in zip(state, initial, strict=True):
            tensor.copy_(value)

    def step() -> None:
        for part in parts:
            part()

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")  # first use by the backward pass
        _first_step(step, state, restore)
        for _ in range(WARMUP_STEPS):
            step()
    current_stream = torch.cuda.current_stream(device)
    current_stream.wait_stream(stream)
    try:
        with _garbage_collection_disabled():
            graphs = _capture_graphs(parts, stream)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # some versions of libraries synchronise with the host
        torch.cuda.set_stream(current_stream)  # a failed capture leaves its own stream behind
        restore()
        warn_user(f"running without a captured graph, several times slower: {error}")
        return list(parts)
    restore()
    return [_replay(graph, part) for graph, part in zip(graphs, parts, strict=True)]


def _capture_graphs(parts: Sequence[Callable[[], None]], stream: torch.cuda.Stream) -> list[torch.cuda.CUDAGraph]:
    """Capture each part as a graph. All use the memory of the first."""
    graphs: list[torch.cuda.CUDAGraph] = []
    for part in parts:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs else None, stream=stream):
            part()
        graphs.append(graph)
    return graphs


def _replay(graph: torch.cuda.CUDAGraph, part: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(part)  # keeps the part alive: a graph reads tensors by address and does not own them
    def replay() -> None:
        graph.replay()

    return replay


def _first_step(step: Callable[[], None], state: Sequence[Tensor], restore: Callable[[], None]) -> None:
    """Run the step; if it works only without custom kernels, disable these for the rest of the process."""
    try:
        step()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton fails in many ways
        if not kernels.available(state[0]):
            raise
        restore()
        with kernels.disable_kernels():
            step()
        kernels.disable_permanently(str(error))


@contextlib.contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable Python's garbage collection: a graph that is freed during the capture of another one spoils it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
