"""What the image files of a dataset contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class DatasetWarning(UserWarning):
    """A remark on the files of a dataset. A resumed run does not repeat it."""


@dataclass(frozen=True)
class FileScan:
    """The result of reading the headers of all image files of a dataset.

    Attributes:
        readable: The files that are used.
        modes: Number of readable files per Pillow mode, such as RGB. Empty if no file was opened.
        sizes: Number of readable files per (width, height).
        unreadable: The files that are left out, with the reason.
    """

    readable: Sequence[str] = ()
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: FileScan) -> FileScan:
        """Return the scan of the files of both."""
        return FileScan(
            [*self.readable, *other.readable],
            self.modes + other.modes,
            self.sizes + other.sizes,
            {**self.unreadable, **other.unreadable},
        )
