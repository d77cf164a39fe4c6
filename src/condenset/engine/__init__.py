"""Devices, precision, random streams, compilation and memory planning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condenset.engine.device import ComputeDevice as ComputeDevice

__all__ = ["ComputeDevice"]


def __getattr__(name: str) -> Any:
    """Import `ComputeDevice` on first use: `ray_collector` does not need PyTorch, whose import takes seconds."""
    if name in __all__:
        return getattr(import_module("condenset.engine.device"), name)
    raise AttributeError(f"module 'condenset.engine' has no attribute {name!r}")
