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


__all__ = ["available", "available_for_blocks", "jit", "plain_blocks", "switch_off", "tl", "triton"]


_off: set[str] = set()  # why the kernels were switched off, if they were
_plain: list[None] = []  # one for every `plain_blocks` that is entered


def available(tensor: Tensor) -> bool:
    """Whether the kernels run where this tensor lies."""
    return tensor.device.type == "cuda" and hasattr(triton, "jit") and not _off


def available_for_blocks(maps: Tensor) -> bool:
    """Whether the kernels of network blocks take these maps: bfloat16 only, float32 is for those who want it exact."""
    return maps.dtype == torch.bfloat16 and available(maps) and not _plain


@contextlib.contextmanager
def plain_blocks() -> Iterator[None]:
    """Network blocks take the plain path meanwhile: their kernels know no second derivative."""
    _plain.append(None)
    try:
        yield
    finally:
        _plain.pop()


def switch_off(reason: str) -> None:
    """Take the plain path from now on, and say so once."""
    if not _off:
        warnings.warn(f"running without hand-written kernels, several times slower: {reason}", stacklevel=2)
    _off.add(reason)
