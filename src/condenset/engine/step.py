"""Make a step fast without changing it: compiling and graph capture wrap the same function."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from condenset.engine.place import Place

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R], place: Place) -> Callable[P, R]:
    """The same function, compiled where that pays; where it fails, a warning once and the plain one."""
    if place.device.type != "cuda":
        return function
    fast: Callable[P, R] = torch.compile(function, dynamic=False)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal fast
        try:
            return fast(*args, **kwargs)
        except Exception as error:  # a missing compiler, an unsupported device: many kinds, and one way out
            if fast is function:
                raise
            warnings.warn(f"running without the compiler, several times slower: {error}", stacklevel=2)
            fast = function
            return fast(*args, **kwargs)

    return call


def accelerate(step: Callable[[], None], state: Sequence[Tensor], place: Place) -> Callable[[], None]:
    """The same step, replayed as a captured graph where the device has such; `state` is all that the step changes."""
    if place.device.type != "cuda":
        return step
    return _captured(step, state, place.device)


def _captured(step: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Callable[[], None]:
    kept = [tensor.clone() for tensor in state]
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries choose their kernels, allocators settle
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    for tensor, value in zip(state, kept, strict=True):
        tensor.copy_(value)
    return graph.replay
