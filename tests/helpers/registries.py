"""Replace registered methods, networks and datasets for the duration of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from condenset.registry import Registry


@contextmanager
def replaced_item(registry: Registry[Any], item: Any) -> Iterator[None]:
    """Use `item` instead of the registered item of the same name. The order of names stays the same."""
    original = list(registry.values())
    _register_all(registry, [item if entry.name == item.name else entry for entry in original])
    try:
        yield
    finally:
        _register_all(registry, original)


def _register_all(registry: Registry[Any], items: Iterable[Any]) -> None:
    for name in list(registry):
        registry.unregister(name)
    for item in items:
        registry.register(item)
