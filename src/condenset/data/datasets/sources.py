"""The registry of named datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from condenset.data.reading.lazy import LazyDataset
from condenset.data.reading.options import LoadOptions
from condenset.errors import check_choice
from condenset.io.dataset_names import normalize_name
from condenset.registry import Registry


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        url: Its address.
        digest: "md5:HEX" or "sha256:HEX".
        size: Its approximate size in bytes.
        path: Where to store it, relative to the data directory.
        unpacks_to: The directory that the archive unpacks to, relative to the data directory; empty for a plain file.
        unpacked_size: The largest size in bytes that the archive may unpack to.
    """

    url: str
    digest: str
    size: int
    path: str
    unpacks_to: str = ""
    unpacked_size: int = 0


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A named dataset: what it contains, where its files are and how to read them.

    Attributes:
        name: The name that users give, a Python identifier.
        title: One line for lists.
        num_classes, num_train, num_test: The numbers of classes, training images and test images.
        shape: (C, H, W) of its images.
        read: Function `(directory, options) -> LazyDataset` that reads it. `options` is a `LoadOptions`; image files
            are read with its `size`, and the test split is replaced or held out afterwards. The dataset names the
            other options that it was read with in `used_options`.
        mean, std: Normalisation constants for pixels in 0..1; measured on the training images if None.
        allow_hflip: Allow horizontal flips. False for text and digits.
        directories: Where its files may be, relative to the data directory; the first that has all of `files` is used.
        files: Files and directories that must exist; a file may also have the suffix .gz. None for a bundled dataset.
        downloads: What to download.
        instructions: How to get a dataset that cannot be downloaded; a path is appended.
    """

    name: str
    title: str
    num_classes: int
    num_train: int
    num_test: int
    shape: tuple[int, int, int]
    read: Callable[[Path, LoadOptions], LazyDataset]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    allow_hflip: bool = True
    directories: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    instructions: str = ""

    @property
    def is_bundled(self) -> bool:
        """Whether it is part of an installed package, so that there is nothing to download."""
        return not self.files

    @property
    def download_bytes(self) -> int:
        return sum(download.size for download in self.downloads)

    def locate(self, data_dir: Path) -> Path | None:
        """Return the directory that has its files, or None if a file is missing."""
        paths = (data_dir / directory for directory in self.directories)
        return next((path for path in paths if not self.missing_files(path)), None)

    def missing_files(self, directory: Path) -> list[str]:
        """Return which of its files a directory lacks."""
        return [f for f in self.files if not (directory / f).exists() and not (directory / f"{f}.gz").exists()]


DATASETS: Registry[DatasetSource] = Registry("dataset", DatasetSource, "condenset.datasets")


def register_dataset(source: DatasetSource) -> DatasetSource:
    """Add a dataset to the registry, so that `cs.load` and the command line find it by its name.

    Args:
        source: The dataset. Its `read` function returns a `LazyDataset`.

    Returns:
        The same object.

    Raises:
        UserError: The name is not a Python identifier or belongs to another dataset.

    Example:
        >>> import dataclasses
        >>> import condenset as cs
        >>> source = dataclasses.replace(cs.DATASETS["digits"], name="my_digits", title="My digits")
        >>> cs.register_dataset(source).name
        'my_digits'
        >>> len(cs.load("my_digits", verbose=False).test)
        364
        >>> cs.DATASETS.unregister("my_digits")
    """
    return DATASETS.register(source)


def find_registered_name(name: str) -> str | None:
    """Return the registered name that matches, ignoring case, `-` and `_`, or None: CIFAR-10 matches cifar10."""
    return {normalize_name(registered): registered for registered in DATASETS}.get(normalize_name(name))


def require_registered_name(name: str) -> str:
    """Return the registered name that matches; if there is none, raise a UserError that suggests the nearest one."""
    registered = find_registered_name(name)
    if registered is None:
        check_choice("dataset", name, DATASETS)
    assert registered is not None
    return registered
