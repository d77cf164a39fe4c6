"""Triton kernels. Each has a plain PyTorch equivalent elsewhere, with which the tests compare it.

`available` returns False where kernels cannot run (no Triton, no compiler, not a CUDA device). Callers then use the
PyTorch code.
"""

from condenset.kernels.runtime import (
    available,
    available_for_blocks,
    copy_filters_per_class,
    disable_kernels,
    disable_permanently,
    per_class_filters,
)

__all__ = [
    "available",
    "available_for_blocks",
    "copy_filters_per_class",
    "disable_kernels",
    "disable_permanently",
    "per_class_filters",
]
