"""Triton, if it is there, and whether it works on a device."""

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl
    from triton import jit
else:
    triton = tl = SimpleNamespace(constexpr=lambda value: value)

    def jit(function: Any) -> Any:
        """Without triton a kernel is only text."""
        return function


__all__ = [
    "affine",
    "available",
    "available_for_blocks",
    "by_class",
    "copies_by_class",
    "jit",
    "levels",
    "num_programs",
    "plain",
    "switch_off",
    "tl",
    "triton",
]


_off: set[str] = set()  # why the kernels were switched off, if they were
_tried: list[bool] = []  # something, once it is known whether one can be built
_plain: list[bool] = []  # one for every `plain` that is entered: whether it is of blocks only
_by_class: list[tuple[int, dict[int, Tensor]]] = []  # classes and copies of every `by_class` that is entered


def available(tensor: Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    there = tensor.device.type == "cuda" and hasattr(triton, "jit")
    return there and not _off and all(_plain) and (bool(_tried) or _try(tensor.device))


def _try(device: torch.device) -> bool:
    """Whether a kernel can be built at all: it takes a compiler that not every machine has."""
    one = torch.zeros(1, device=device)
    try:
        _write_one[(1,)](one)
    except Exception as error:  # many kinds, and one way out
        switch_off(str(error))
    _tried.append(True)
    return not _off


@jit
def _write_one(out):
    tl.store(out, 1.0)


def available_for_blocks(maps: Tensor) -> bool:
    """Whether the kernels of network blocks take these maps: bfloat16 only, float32 is for those who want it exact."""
    return maps.dtype == torch.bfloat16 and available(maps) and not _plain


@contextlib.contextmanager
def plain(*, blocks_only: bool = False) -> Iterator[None]:
    """Everything, or the blocks of networks alone, takes the plain path meanwhile."""
    _plain.append(blocks_only)
    try:
        yield
    finally:
        _plain.pop()


@contextlib.contextmanager
def by_class(num: int) -> Iterator[dict[int, Tensor]]:
    """A kernel that does a whole block, whose layers nobody sees, takes a copy of its filters for each of the classes.

    Gives these copies, (num, ...) as they are made, by the id of the filters: their gradient is each class's own.
    """
    copies: dict[int, Tensor] = {}
    _by_class.append((num, copies))
    try:
        yield copies
    finally:
        _by_class.pop()


def copies_by_class(filters: Tensor) -> Tensor:
    """The filters as a kernel of a whole block should take them."""
    if not _by_class:
        return filters
    num, copies = _by_class[-1]
    copies[id(filters)] = filters.expand(num, *filters.shape)
    return copies[id(filters)]


def switch_off(reason: str) -> None:
    """Take the plain path from now on, and say so once."""
    if not _off:
        warnings.warn(f"running without hand-written kernels, several times slower: {reason}", stacklevel=2)
    _off.add(reason)


def num_programs(num: int, device: torch.device, per_processor: int) -> int:
    """How many programs share `num` pieces of work, when each does one after another."""
    if device.type != "cuda":
        return num
    return min(num, per_processor * torch.cuda.get_device_properties(device).multi_processor_count)


@jit
def affine(gain, bias, means, rstds, row, c, c_in, CHANNELS: tl.constexpr):
    """What a norm does to channels c of a row: its mean, 1/std, and the scale and shift that they make."""
    mean = tl.load(means + row * CHANNELS + c, mask=c_in, other=0.0)
    rstd = tl.load(rstds + row * CHANNELS + c, mask=c_in, other=0.0)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    return mean, rstd, scale, shift


@jit
def levels(sums, products, row, mean, rstd, c, c_in, num, CHANNELS: tl.constexpr):
    """The gradient is scale * (slope - (total + normal * product) / num), normal = (value - mean) * rstd: its parts."""
    tilt = tl.load(products + row * CHANNELS + c, mask=c_in, other=0.0) * rstd / num
    return tl.load(sums + row * CHANNELS + c, mask=c_in, other=0.0) / num - mean * tilt, tilt
