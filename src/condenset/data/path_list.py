"""Lists of file paths that need little memory, for datasets of millions of files."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class PathList(Sequence[str]):
    """File paths in order: the names of each folder are one array of bytes, about a fifth of the memory of a list.

    Args:
        parts: Folders with the names of files relative to them, as bytes of the file system. A folder may repeat.
    """

    def __init__(self, parts: Iterable[tuple[str, NDArray[np.bytes_]]] = ()) -> None:
        self._parts = [(folder, names) for folder, names in parts if len(names)]
        self._stops = list(accumulate(len(names) for _, names in self._parts))

    @classmethod
    def from_paths(cls, paths: Iterable[str], folder: str = "") -> PathList:
        """Return a list of paths. If a folder is given, it contains all of them, and is stored once."""
        start = len(os.path.join(folder, ""))  # with the separator, which "/" has already
        names = [os.fsencode(path[start:]) for path in paths]
        return cls([(folder, np.array(names, np.bytes_))])

    @classmethod
    def join(cls, lists: Iterable[PathList]) -> PathList:
        """Return the paths of several lists in one."""
        return cls(part for paths in lists for part in paths._parts)

    def without(self, paths: Container[str]) -> PathList:
        """Return the list without these paths."""
        return PathList(
            (folder, names[[_join(folder, name) not in paths for name in names]]) for folder, names in self._parts
        )

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __iter__(self) -> Iterator[str]:
        return (_join(folder, name) for folder, names in self._parts for name in names)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: Any) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # accepts negative numbers, and refuses those beyond the end
        part = bisect_right(self._stops, row)
        folder, names = self._parts[part]
        return _join(folder, names[row - self._stops[part]])


def _join(folder: str, name: bytes) -> str:
    return os.path.join(folder, os.fsdecode(bytes(name)))
