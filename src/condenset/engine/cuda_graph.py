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

WARMUP_STEPS = 2  # after the first: libraries select their kernels, and the allocator settles


def capture_step(step: Callable[[], None], state: Sequence[Tensor], compute: ComputeDevice) -> Callable[[], None]:
    """Return the same step as a captured graph on CUDA, and the step itself on other devices.

    Args:
        step: A function that reads and writes tensors at fixed addresses and needs nothing from the host.
        state: All tensors that the step changes. They are restored after the warm-up.
        compute: Device and precision.
    """
    if not supports_graphs(compute.device):
        return step
    with compute.activate():
        return _capture(step, state, compute.device)


def supports_graphs(device: torch.device) -> bool:
    """Return whether steps can be captured on this device."""
    return device.type == "cuda"


def try_step(step: Callable[[], None], state: Sequence[Tensor], compute: ComputeDevice) -> None:
    """Run a step that is not captured once on CUDA and restore the state; without custom kernels if they fail."""
    if not supports_graphs(compute.device):
        return
    initial = [tensor.clone() for tensor in state]

    def restore() -> None:
        for tensor, value in zip(state, initial, strict=True):
            tensor.copy_(value)

    _first_step(step, state, restore)
    restore()


def _capture(step: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Callable[[], None]:
    """Warm up and capture a step; if it cannot be captured, warn and return the step itself."""
    initial = [tensor.clone() for tensor in state]

    def restore() -> None:
        for tensor, value in zip(state, initial, strict=True):
            tensor.copy_(value)

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        _first_step(step, state, restore)
        for _ in range(WARMUP_STEPS):
            step()
    current_stream = torch.cuda.current_stream(device)
    current_stream.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with _garbage_collection_disabled(), torch.cuda.graph(graph, stream=stream):
            step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # some versions of libraries synchronise with the host
        torch.cuda.set_stream(current_stream)  # a failed capture leaves its own stream behind
        restore()
        warnings.warn(f"running without a captured graph, several times slower: {error}", stacklevel=2)
        return step
    restore()

    @functools.wraps(step)  # keeps the step alive: a graph reads tensors by address and does not own them
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
