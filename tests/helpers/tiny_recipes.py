"""Recipes for every registered method that take a fraction of a second."""

from __future__ import annotations

from typing import Any

from condenset.config import field_names
from condenset.methods import METHODS, Recipe
from condenset.methods.registry import make_recipe

NETWORK = "convnet(width=4, depth=1)"
FAMILY = tuple(name for name, method in METHODS.items() if method.condense is METHODS["dm"].condense)
DISTINCT_METHODS = tuple(name for name in METHODS if name not in FAMILY or name in ("dm", "idm", "dmplus"))
"""All methods, but only three that combine parts of distribution matching: their step is the same."""


def tiny_recipe(method: str, *, size: int = 8, **fields: Any) -> Recipe:
    """Return the method's own tiny settings, with a smaller network, smaller batches and fewer iterations."""
    names = field_names(METHODS[method].recipe)
    smaller = {
        key: value for key, value in {"network": NETWORK, "batch_size": 4, "iterations": 3}.items() if key in names
    }
    settings = {**METHODS[method].tiny, "ipc": 2, "allow_fewer": True, **smaller, **fields}
    return make_recipe(method, name="tiny", size=size, **settings)
