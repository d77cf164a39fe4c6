"""List the datasets that can be loaded by name, and check their files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from condenset.data.image_data import Splits
from condenset.data.lazy import PixelStats, iter_blocks
from condenset.data.loading import check_complete, open_dataset, registered_name
from condenset.data.memmap import list_memmaps, memmap_directory, read_memmap, to_lazy_dataset, verify_memmap
from condenset.data.sources import DATASETS, DatasetSource, data_directory
from condenset.errors import UserError

PathLike = str | os.PathLike[str]
MEAN_TOLERANCE = 0.02  # between the mean pixel of a dataset and its registered normalisation constant


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
        splits = read_memmap(path)
    except UserError as error:  # a broken dataset must not hide the others
        return DatasetInfo(
            name=name, title=str(error), state="broken", num_train=0, num_test=0, num_classes=0, shape=(), path=path
        )
    return DatasetInfo(
        name=name,
        title=splits.train.source,
        state="imported",
        num_train=len(splits.train),
        num_test=len(splits.test),
        num_classes=splits.train.num_classes,
        shape=tuple(splits.train.images.shape[1:]),
        path=path,
    )


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """The result of `check_dataset`.

    Attributes:
        mean, std: The normalisation constants that `load` uses.
        measured_mean, measured_std: The mean and standard deviation of the training images.
    """

    name: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    measured_mean: tuple[float, ...]
    measured_std: tuple[float, ...]
    source: str

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (self.measured_mean, self.measured_std))
        counts = f"{self.num_train:,} train and {self.num_test:,} test images of {shape}, {self.num_classes} classes"
        return f"{self.name}: {counts}; pixel mean {mean}, std {std}"


def check_dataset(
    name_or_path: PathLike, *, data_dir: PathLike | None = None, size: int | None = None, verbose: bool = True
) -> DatasetReport:
    """Read every image of a dataset, block by block, and return a report; raise a UserError if anything is wrong."""
    opened, name = open_dataset(name_or_path, data_directory(data_dir), size, verbose=verbose)
    dataset = to_lazy_dataset(opened) if isinstance(opened, Splits) else opened
    stats = PixelStats(dataset.train.shape[1])
    for block in iter_blocks(dataset.train, f"checking {name}", verbose=verbose):
        stats.add(block)
    for _ in iter_blocks(dataset.test, f"checking {name} (test)", verbose=verbose):
        pass
    if isinstance(opened, Splits):
        verify_memmap(opened)
    mean, std = stats.result()
    if registered := registered_name(name_or_path):
        check_complete(dataset, registered)
        _check_mean(registered, mean)
    return DatasetReport(
        name=name,
        num_train=dataset.train.shape[0],
        num_test=dataset.test.shape[0],
        num_classes=len(dataset.class_names),
        shape=dataset.train.shape[1:],
        mean=dataset.mean or mean,
        std=dataset.std or std,
        measured_mean=mean,
        measured_std=std,
        source=dataset.source,
    )


def _check_mean(name: str, measured: tuple[float, ...]) -> None:
    expected = DATASETS[name].mean
    if expected and max(abs(a - b) for a, b in zip(expected, measured, strict=False)) > MEAN_TOLERANCE:
        means = [" ".join(f"{value:.3f}" for value in values) for values in (expected, measured)]
        hint = f"check that these are the files of {name}"
        raise UserError(f"the pixels of {name} must have the mean {means[0]}, but got {means[1]}; {hint}")
