"""Registries: methods, networks and datasets by name, extensible by other packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Protocol, TypeVar

from condenset.errors import UserError, check_choice, warn_user


class Named(Protocol):
    """An item that a registry can hold."""

    @property
    def name(self) -> str: ...


Item = TypeVar("Item", bound=Named)


class Registry(Mapping[str, Item]):
    """Items by name, in the order of registration.

    Installed packages add items through an entry-point group: each entry point refers to one item.

    Args:
        kind: A noun for an item in error messages, such as "method".
        item_type: The class that every item must be an instance of.
        group: The entry-point group.
    """

    def __init__(self, kind: str, item_type: type[Item], group: str) -> None:
        self.kind, self.item_type, self.group = kind, item_type, group
        self._items: dict[str, Item] = {}
        self._loaded = False

    def register(self, item: Item) -> Item:
        """Add an item under its name and return it; adding the same item again changes nothing."""
        if not isinstance(item, self.item_type):
            raise UserError(
                f"a {self.kind} must be an instance of {self.item_type.__name__}, but got {type(item).__name__}"
            )
        if not item.name.isidentifier():
            raise UserError(f"the name of a {self.kind} must be a Python identifier, but got {item.name!r}")
        if self._items.get(item.name, item) is not item:
            raise UserError(f"a {self.kind} named {item.name!r} is already registered")
        self._items[item.name] = item
        return item

    def unregister(self, name: str) -> None:
        """Remove an item."""
        del self._items[name]

    def lookup(self, name: object) -> Item:
        """Return the item of this name; for an unknown name, raise a UserError that suggests the nearest one."""
        check_choice(self.kind, name, self)
        return self[str(name)]

    def __getitem__(self, name: str) -> Item:
        self._load_entry_points()
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._load_entry_points()
        return iter(self._items)

    def __len__(self) -> int:
        self._load_entry_points()
        return len(self._items)

    def _load_entry_points(self) -> None:
        """Register the items of installed packages; skip an item that fails to load, with a warning."""
        if self._loaded:
            return
        self._loaded = True
        for entry_point in entry_points(group=self.group):
            try:
                self.register(entry_point.load())
            except Exception as error:  # the code of another package can fail in any way
                package = entry_point.dist.name if entry_point.dist else entry_point.value
                warn_user(f"cannot load the {self.kind} {entry_point.name!r} of {package}: {error}")
