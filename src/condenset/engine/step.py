"""Make a step fast without changing it: compiling and graph capture wrap the same function."""

from __future__ import annotations

import contextlib
import functools
import gc
import types
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from condenset import kernels, networks
from condenset.engine.place import Place
from condenset.networks.layers import Block

P = ParamSpec("P")
R = TypeVar("R")
Forward = Callable[[dict[str, Tensor], Tensor], Tensor]

MOST_TRACES = 16  # that are kept; each took half a minute to compile
_traces: dict[Hashable, Callable[..., Any]] = {}


def compiled(function: Callable[P, R], place: Place) -> Callable[P, R]:
    """The same function, compiled where that pays; where it fails, a warning once and the plain one."""
    if place.device.type != "cuda":
        return function
    fast: Callable[P, R] = torch.compile(_own_code(function), dynamic=False)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal fast
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="TensorFloat32")  # advice on a setting that is not ours
                return fast(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise  # the compiler has no part in that
        except Exception as error:  # a missing compiler, an unsupported device: many kinds, and one way out
            if fast is function:
                raise
            warnings.warn(f"running without the compiler, several times slower: {error}", stacklevel=2)
            fast = function
            return fast(*args, **kwargs)

    return call


def _own_code(function: Callable[P, R]) -> Callable[P, R]:
    """The function with code of its own: the compiler counts how often it compiled a piece of code, and gives up."""
    if not isinstance(function, types.FunctionType):
        return function  # a traced graph has code of its own
    code = function.__code__.replace()
    own = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return functools.update_wrapper(own, function)


def traced(function: Callable[..., R], place: Place, name: str) -> Callable[..., R]:
    """The same function of tensors, compiled, where it takes gradients of gradients: these become plain operations.

    The compiler does not differentiate twice, but a trace of the whole needs no differentiating any more. name: of
    functions alike, which must take all that they read as arguments: they share a trace for each set of shapes.
    """
    if place.device.type != "cuda":
        return function

    @functools.wraps(function)
    def call(*args: Any) -> R:
        key = (name, place, tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(args)))
        if key not in _traces:
            if len(_traces) >= MOST_TRACES:
                del _traces[next(iter(_traces))]
            with torch.autograd.set_multithreading_enabled(False):  # a trace sees what its own thread does
                _traces[key] = compiled(make_fx(lambda *each: function(*each))(*args), place)
        with torch.no_grad():
            result: R = _traces[key](*args)
            return result

    return call


def forward_of(network: nn.Module, place: Place, *, compiling: bool = True) -> Forward:
    """The network as a function of its parameters and images; compiled, unless kernels of our own do its blocks.

    compiling: not for a network that is trained only briefly, since it takes 10 to 20 seconds.
    """

    def forward(views: dict[str, Tensor], images: Tensor) -> Tensor:
        out: Tensor = functional_call(network, views, (images,))
        return out

    return compiled(forward, place) if compiling and _to_compile(network, place) else forward


def _to_compile(network: nn.Module, place: Place) -> bool:
    nothing = not any(True for _ in network.parameters())
    return place.device.type == "cuda" and not nothing and not by_hand(network, place)


def network_for(
    spec: str, channels: int, size: int, num_classes: int, place: Place, *, batches: frozenset[int], compiling: bool
) -> tuple[nn.Module, Forward]:
    """A module of this architecture and its forward; where that is compiled, one for all who train it on such batches.

    So its own parameters and buffers are nobody's: who calls the forward gives it those to use.
    """
    shape = {"channels": channels, "size": size, "num_classes": num_classes}
    with torch.device("meta"):
        wanted = compiling and _to_compile(networks.build(spec, **shape), place)
    if wanted:
        return _compiled_network(spec, channels, size, num_classes, place, batches)
    network = networks.build(spec, **shape).to(place.device)
    return network, forward_of(network, place, compiling=False)


@functools.lru_cache(maxsize=8)
def _compiled_network(
    spec: str, channels: int, size: int, num_classes: int, place: Place, batches: frozenset[int]
) -> tuple[nn.Module, Forward]:
    """By sizes of batch too: the compiler gives up on a function that has been given many."""
    network = networks.build(spec, channels=channels, size=size, num_classes=num_classes).to(place.device)
    return network, forward_of(network, place)


def mixed(function: Callable[P, R], place: Place) -> Callable[P, R]:
    """The same function of float32 tensors, each operation in the place's precision if it is one that bears it."""
    if place.dtype == torch.float32:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # A graph must not keep what a cache held when it was captured.
        with torch.autocast(place.device.type, place.dtype, cache_enabled=False):
            return function(*args, **kwargs)

    return call


def by_hand(network: nn.Module, place: Place) -> bool:
    """Whether kernels of our own do all of the network's blocks here."""
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    maps = torch.empty(0, device=place.device, dtype=place.dtype)
    return bool(blocks) and all(block.has_kernel for block in blocks) and kernels.available_for_blocks(maps)


def accelerate(step: Callable[[], None], state: Sequence[Tensor], place: Place) -> Callable[[], None]:
    """The same step, replayed as a captured graph where the device has such; `state` is all that the step changes."""
    if place.device.type != "cuda":
        return step
    return _captured(step, state, place.device)


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Python collects no garbage meanwhile: a graph that dies during the capture of another spoils it."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _captured(step: Callable[[], None], state: Sequence[Tensor], device: torch.device) -> Callable[[], None]:
    kept = [tensor.clone() for tensor in state]

    def restore() -> None:
        for tensor, value in zip(state, kept, strict=True):
            tensor.copy_(value)

    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        try:
            step()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a kernel that this machine cannot build: many kinds, and one way out
            if not kernels.available(state[0]):
                raise
            restore()
            with kernels.plain():
                step()
            kernels.switch_off(str(error))  # they are to blame, since without them it works
        for _ in range(2):  # libraries choose their kernels, allocators settle
            step()
    before = torch.cuda.current_stream(device)
    before.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with _no_collecting(), torch.cuda.graph(graph, stream=stream):
            step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # a library that asks something of the host, on this machine or in this version
        torch.cuda.set_stream(before)  # a capture that failed leaves its own behind
        restore()
        warnings.warn(f"running without a captured graph, several times slower: {error}", stacklevel=2)
        return step
    restore()

    @functools.wraps(step)  # so it holds the step, whose tensors a graph reads by address and does not keep alive
    def replay() -> None:
        graph.replay()

    return replay
