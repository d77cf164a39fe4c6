"""List the datasets that can be loaded by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from condenset.data.datasets.sources import DATASETS, DatasetSource
from condenset.data.imports.memmap import list_memmaps, memmap_directory, read_memmap
from condenset.errors import UserError
from condenset.io.user_directories import data_directory

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """One row of `list_datasets`.

    Attributes:
        title: One line of description; for a broken dataset the error.
        state: bundled, ready, missing, imported or broken.
        path: The directory that it is in, or None.
    """

    name: str
    title: str
    state: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...]
    download_bytes: int = 0
    path: Path | None = None


def list_datasets(data_dir: PathLike | None = None) -> list[DatasetInfo]:
    """List the datasets that `load` finds by name: registered ones, then those imported into the data directory."""
    directory = data_directory(data_dir)
    registered = [_registered_info(source, directory) for source in DATASETS.values()]
    return registered + [_imported_info(name, memmap_directory(directory, name)) for name in list_memmaps(directory)]


def _registered_info(source: DatasetSource, data_dir: Path) -> DatasetInfo:
    path = None if source.is_bundled else source.locate(data_dir)
    return DatasetInfo(
        name=source.name,
        title=source.title,
        state="bundled" if source.is_bundled else "ready" if path else "missing",
        num_train=source.num_train,
        num_test=source.num_test,
        num_classes=source.num_classes,
        shape=source.shape,
        download_bytes=source.download_bytes,
        path=path,
    )


def _imported_info(name: str, path: Path) -> DatasetInfo:
    try:
        dataset = read_memmap(path)
    except UserError as error:  # a broken dataset must not hide the others
        return DatasetInfo(
            name=name, title=str(error), state="broken", num_train=0, num_test=0, num_classes=0, shape=(), path=path
        )
    return DatasetInfo(
        name=name,
        title=dataset.source,
        state="imported",
        num_train=dataset.train.shape[0],
        num_test=dataset.test.shape[0] if dataset.test else 0,
        num_classes=len(dataset.class_names),
        shape=dataset.train.shape[1:],
        path=path,
    )
