"""Hand-written GPU kernels, each the same function as a plain one elsewhere, which the tests hold it against.

Where they cannot run (no triton, no compiler for it, another device), `available` says so and the plain path is taken.
"""

from condenset.kernels.runtime import (
    available,
    available_for_blocks,
    by_class,
    copies_by_class,
    plain,
    switch_off,
)

__all__ = ["available", "available_for_blocks", "by_class", "copies_by_class", "plain", "switch_off"]
