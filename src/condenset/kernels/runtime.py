"""Triton if it is installed, and the switches that decide whether kernels run."""

import contextlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from condenset.errors import warn_user

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl
    from triton import jit
else:
    triton = tl = SimpleNamespace(constexpr=lambda value: value)

    def jit(function: Any) -> Any:
        """Leave a kernel as it is: without Triton it never runs."""
        return function


__all__ = [
    "NORM_EPSILON",
    "available",
    "available_for_blocks",
    "copy_filters_per_class",
    "disable_kernels",
    "disable_permanently",
    "jit",
    "launch",
    "norm_backward_terms",
    "norm_scale_shift",
    "num_programs",
    "per_class_filters",
    "tl",
    "triton",
]

NORM_EPSILON = tl.constexpr(1e-5)  # as in nn.GroupNorm and nn.BatchNorm2d

_failures: set[str] = set()  # reasons why the kernels are disabled for the rest of the process
_tested_devices: set[torch.device] = set()  # where building a kernel has been tried
_disabled: list[bool] = []  # `blocks_only` of every active `disable_kernels`
_per_class: list[tuple[int, dict[int, Tensor]]] = []  # classes and copies of every active `per_class_filters`


def available(tensor: Tensor) -> bool:
    """Return whether kernels can process this tensor; otherwise use the PyTorch code."""
    possible = tensor.device.type == "cuda" and hasattr(triton, "jit")
    return possible and not _failures and all(_disabled) and _can_build(tensor.device)


def available_for_blocks(maps: Tensor) -> bool:
    """Return whether kernels can compute the blocks of a network. They exist for bfloat16 only."""
    return maps.dtype == torch.bfloat16 and available(maps) and not _disabled


def _can_build(device: torch.device) -> bool:
    """Return whether a kernel can be built, which needs a C compiler and a supported device."""
    if device not in _tested_devices:
        try:
            launch(_write_one, (1,), torch.zeros(1, device=device))
        except Exception as error:  # Triton fails in many ways
            disable_permanently(str(error))
        _tested_devices.add(device)
    return not _failures


@jit
def _write_one(out):
    tl.store(out, 1.0)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a kernel on the device of its first argument. Triton alone would use the current CUDA device."""
    device = args[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](*args, **options)


@contextlib.contextmanager
def disable_kernels(*, blocks_only: bool = False) -> Iterator[None]:
    """Use the PyTorch code instead of kernels for the duration of the `with` block.

    Args:
        blocks_only: Disable only the kernels that compute the blocks of networks.
    """
    _disabled.append(blocks_only)
    try:
        yield
    finally:
        _disabled.pop()


def disable_permanently(reason: str) -> None:
    """Use the PyTorch code for the rest of the process, and warn once."""
    if not _failures:
        warn_user(f"running without custom kernels, several times slower: {reason}")
    _failures.add(reason)


@contextlib.contextmanager
def per_class_filters(num_classes: int) -> Iterator[dict[int, Tensor]]:
    """Give every fused convolution one copy of its filters per class, for the duration of the `with` block.

    The gradient of a copy is the gradient of its class alone.

    Yields:
        The copies (num_classes, ...) by the id of the original filters, filled in during the forward pass.
    """
    copies: dict[int, Tensor] = {}
    _per_class.append((num_classes, copies))
    try:
        yield copies
    finally:
        _per_class.pop()


def copy_filters_per_class(filters: Tensor) -> Tensor:
    """Return the filters of a fused convolution: one copy per class inside `per_class_filters`, else the filters."""
    if not _per_class:
        return filters
    num_classes, copies = _per_class[-1]
    copies[id(filters)] = filters.expand(num_classes, *filters.shape)
    return copies[id(filters)]


def num_programs(num: int, device: torch.device, per_processor: int) -> int:
    """Return how many programs to launch for `num` items: at most `per_processor` on each multiprocessor of the GPU."""
    if device.type != "cuda":
        return num
    return min(num, per_processor * torch.cuda.get_device_properties(device).multi_processor_count)


@jit
def norm_scale_shift(gain, bias, means, rstds, row, c, c_mask, CHANNELS: tl.constexpr):
    """Return mean, 1/std, scale and shift of a norm for channels c: norm(value) = value * scale + shift."""
    mean = tl.load(means + row * CHANNELS + c, mask=c_mask, other=0.0)
    rstd = tl.load(rstds + row * CHANNELS + c, mask=c_mask, other=0.0)
    scale = tl.load(gain + c, mask=c_mask, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_mask, other=0.0).to(tl.float32) - mean * scale
    return mean, rstd, scale, shift


@jit
def norm_backward_terms(sums, products, row, mean, rstd, c, c_mask, num, CHANNELS: tl.constexpr):
    """Return (offset, factor) of the gradient of a norm: scale * (grad - offset - value * factor).

    With normal = (value - mean) * rstd this equals scale * (grad - (sum + normal * product) / num).
    """
    factor = tl.load(products + row * CHANNELS + c, mask=c_mask, other=0.0) * rstd / num
    return tl.load(sums + row * CHANNELS + c, mask=c_mask, other=0.0) / num - mean * factor, factor
