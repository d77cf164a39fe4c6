"""Make a step fast without changing its result: torch.compile, custom kernels and autocast around the same function."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from condenset import kernels, networks
from condenset.engine.device import ComputeDevice
from condenset.errors import warn_user
from condenset.networks.gradients import Forward as Forward
from condenset.networks.layers import Block

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRACES = 16  # in the cache; compiling one takes half a minute
_traces: dict[Hashable, Callable[..., Any]] = {}


def compile_or_fallback(function: Callable[P, R], compute: ComputeDevice) -> Callable[P, R]:
    """Compile a function on CUDA. If compilation fails, warn once and use the function itself."""
    if compute.device.type != "cuda":
        return function
    fast: Callable[P, R] = torch.compile(_copy_code(function), dynamic=False)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal fast
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="TensorFloat32")  # the user decides about this setting
                return fast(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise  # not caused by the compiler
        except Exception as error:  # a missing compiler, an unsupported device and many more
            if fast is function:
                raise
            warn_user(f"running without the compiler, several times slower: {error}")
            fast = function
            return fast(*args, **kwargs)

    return call


def _copy_code(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with its own code object: the compiler limits the compilations per code object."""
    if not isinstance(function, types.FunctionType):
        return function  # a traced graph has its own code
    code = function.__code__.replace()
    clone = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return functools.update_wrapper(clone, function)


def compile_second_order(function: Callable[..., R], compute: ComputeDevice, name: str) -> Callable[..., R]:
    """Compile a function of tensors that computes gradients of gradients.

    The compiler cannot differentiate twice. A trace of the whole function contains the gradients as plain operations.

    Args:
        function: A function that reads nothing but its arguments.
        compute: Device and precision.
        name: Functions of the same name compute the same and share one trace per combination of shapes.
    """
    if compute.device.type != "cuda":
        return function

    @functools.wraps(function)
    def call(*args: Any) -> R:
        key = (name, compute, tuple((leaf.shape, leaf.dtype) for leaf in tree_leaves(args)))
        if key not in _traces:
            if len(_traces) >= MAX_TRACES:
                del _traces[next(iter(_traces))]
            with torch.autograd.set_multithreading_enabled(False):  # a trace records its own thread only
                _traces[key] = compile_or_fallback(make_fx(lambda *tensors: function(*tensors))(*args), compute)
        with torch.no_grad():
            result: R = _traces[key](*args)
            return result

    return call


def functional_forward(network: nn.Module, compute: ComputeDevice, *, compiling: bool = True) -> Forward:
    """Return the network as a function of its parameters and images, compiled where that is faster.

    Args:
        network: The network.
        compute: Device and precision.
        compiling: Allow compilation, which takes 10 to 20 seconds. Disable it for short trainings.
    """

    def forward(parameters: dict[str, Tensor], images: Tensor) -> Tensor:
        output: Tensor = functional_call(network, parameters, (images,))
        return output

    return compile_or_fallback(forward, compute) if compiling and _should_compile(network, compute) else forward


def _should_compile(network: nn.Module, compute: ComputeDevice) -> bool:
    """Return whether to compile: built-in networks on CUDA, unless custom kernels compute their blocks."""
    if compute.device.type != "cuda" or not isinstance(network, networks.Network):
        return False
    has_parameters = any(True for _ in network.parameters())
    return has_parameters and not uses_custom_kernels(network, compute)


def build_functional(
    spec: str,
    channels: int,
    size: int,
    num_classes: int,
    compute: ComputeDevice,
    *,
    batch_sizes: frozenset[int],
    compiling: bool,
) -> tuple[nn.Module, Forward]:
    """Return a network and its forward function.

    A compiled network is cached, and shared by all trainings of an architecture with the same batch sizes. Callers
    must pass their own parameters and buffers to the forward function.

    Args:
        spec: The network.
        channels, size, num_classes: The shape of its inputs and outputs.
        compute: Device and precision.
        batch_sizes: The batch sizes that the forward function is called with.
        compiling: Allow compilation, as in `functional_forward`.
    """
    shape = {"channels": channels, "size": size, "num_classes": num_classes}
    if compiling and compute.device.type == "cuda" and networks.has_default_init(spec):
        with torch.device("meta"):
            network = networks.build(spec, **shape)
        if _should_compile(network, compute):
            return _compiled_network(spec, channels, size, num_classes, compute, batch_sizes)
    network = networks.build(spec, **shape).to(compute.device)
    return network, functional_forward(network, compute, compiling=False)


@functools.lru_cache(maxsize=8)
def _compiled_network(
    spec: str, channels: int, size: int, num_classes: int, compute: ComputeDevice, batch_sizes: frozenset[int]
) -> tuple[nn.Module, Forward]:
    """Build and compile a network. The batch sizes are part of the key: the compiler limits the shapes per function."""
    network = networks.build(spec, channels=channels, size=size, num_classes=num_classes).to(compute.device)
    return network, functional_forward(network, compute)


def with_autocast(function: Callable[P, R], compute: ComputeDevice) -> Callable[P, R]:
    """Return a function of float32 tensors that runs under autocast in the precision of the device."""
    if compute.dtype == torch.float32:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Without the cache, a captured graph cannot reuse casts from before the capture.
        with torch.autocast(compute.device.type, compute.dtype, cache_enabled=False):
            return function(*args, **kwargs)

    return call


def uses_custom_kernels(network: nn.Module, compute: ComputeDevice) -> bool:
    """Return whether custom kernels compute all blocks of the network on this device."""
    blocks = [module for module in network.modules() if isinstance(module, Block)]
    maps = torch.empty(0, device=compute.device, dtype=compute.dtype)
    return bool(blocks) and all(block.has_kernel for block in blocks) and kernels.available_for_blocks(maps)
