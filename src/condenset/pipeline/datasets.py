"""Store where the dataset of a run is, and load the same data again when the run is resumed."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Protocol

from condenset import data
from condenset.data.image_data import Splits
from condenset.data.memmap import list_memmaps
from condenset.data.sources import data_directory, find_registered_name
from condenset.errors import UserError


class DatasetConfig(Protocol):
    """The fields of a plan or an experiment config that identify its dataset."""

    @property
    def dataset(self) -> str: ...
    @property
    def data_dir(self) -> str | None: ...
    @property
    def size(self) -> int | None: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def test_fingerprint(self) -> str: ...


def absolute_dataset_path(dataset: str, data_dir: str | None) -> str:
    """Return the absolute path of a dataset, or the name unchanged if it is the name of a known dataset.

    A run may be resumed from another working directory, so a relative path would not be found.
    """
    path = Path(os.path.expanduser(dataset))  # Path.expanduser raises for an unknown user
    is_name = os.sep not in dataset and (
        find_registered_name(dataset) or dataset in list_memmaps(data_directory(data_dir))
    )
    return dataset if is_name or not path.exists() else str(path.absolute())


def reload_data(config: DatasetConfig, directory: Path, moved_to: str | None = None) -> Splits:
    """Load the data that a run or an experiment began with.

    Args:
        config: The plan or the config of the experiment.
        directory: The run directory, for error messages.
        moved_to: Path of the dataset now, if it has moved.

    Raises:
        UserError: The data are missing or have changed.
    """
    try:
        splits = data.load(moved_to or config.dataset, data_dir=config.data_dir, size=config.size)
    except UserError as error:
        raise UserError(f"{error}; if the dataset has moved, give its path with --dataset or --data-dir") from None
    train_differs = splits.train.fingerprint != config.fingerprint
    if train_differs or config.test_fingerprint not in ("", splits.test.fingerprint):
        if moved_to:
            raise UserError(f"{moved_to} is not the dataset that {directory} began with")
        raise UserError(f"{config.dataset} has changed since {directory} began: start a new run")
    if not moved_to:
        return splits
    name = Path(config.dataset).name.removesuffix(".npz")  # presets depend on the name
    train, test = (dataclasses.replace(split, name=name) for split in (splits.train, splits.test))
    return dataclasses.replace(splits, train=train, test=test)
