"""What the image files of a dataset contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from condenset.data.path_list import PathList
from condenset.io.files import json_hash


class DatasetWarning(UserWarning):
    """A remark on the files of a dataset. A resumed run does not repeat it."""


@dataclass(frozen=True)
class FileScan:
    """The result of reading the headers of all image files of a dataset.

    Attributes:
        readable: The files that are used.
        modes: Number of readable files per Pillow mode, such as RGB.
        sizes: Number of readable files per (width, height).
        unreadable: The files that are left out, with the reason.
        files_hash: A hash of the names, sizes and times of all files. Empty: not computed.
    """

    readable: PathList = field(default_factory=PathList)
    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    files_hash: str = ""

    def __add__(self, other: FileScan) -> FileScan:
        """Return the scan of the files of both."""
        hashes = [self.files_hash, other.files_hash]
        return FileScan(
            PathList.join([self.readable, other.readable]),
            self.modes + other.modes,
            self.sizes + other.sizes,
            {**self.unreadable, **other.unreadable},
            json_hash(hashes) if all(hashes) else "",
        )


@dataclass(frozen=True)
class ScanSettings:
    """How the image files of a dataset are scanned while it is opened.

    Attributes:
        verbose: Show progress.
        for_import: Files that cannot be read are left out and returned, and no file is decoded: the import decodes
            them and collects the errors. The files are hashed.
        unreadable: Files that an import could not decode, with the reason. They are left out.
    """

    verbose: bool = False
    for_import: bool = False
    unreadable: Mapping[str, str] = field(default_factory=dict)


_settings: ContextVar[ScanSettings | None] = ContextVar("scan settings", default=None)


def scan_settings() -> ScanSettings:
    """Return how files are scanned now."""
    return _settings.get() or ScanSettings()


@contextmanager
def use_scan_settings(**fields: Any) -> Iterator[None]:
    """Change fields of `ScanSettings` for the block. Readers of datasets do not have them as arguments."""
    token = _settings.set(replace(scan_settings(), **fields))
    try:
        yield
    finally:
        _settings.reset(token)
