"""Store where the dataset of a run is, and load the same data again when the run is resumed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from condenset.config import make_config
from condenset.data.image_data import Splits
from condenset.data.loading import load_splits
from condenset.data.opening import name_dataset
from condenset.data.options import LoadOptions
from condenset.data.sources import find_registered_name
from condenset.errors import UserError, check
from condenset.io.user_directories import expand_user


class DatasetConfig(Protocol):
    """The fields of a plan or an experiment config that identify its dataset."""

    @property
    def dataset(self) -> str: ...
    @property
    def data_dir(self) -> str | None: ...
    @property
    def load_options(self) -> LoadOptions: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def test_fingerprint(self) -> str: ...


def resolve_load_options(fields: Mapping[str, Any]) -> LoadOptions:
    """Return the options of a dataset, with an absolute path of the test images."""
    options = make_config(LoadOptions, "an option of load", dict(fields))
    if options.test is None:
        return options
    return dataclasses.replace(options, test=os.path.abspath(expand_user(options.test)))


def make_origin(config: DatasetConfig) -> dict[str, Any]:
    """Return where the images of a run come from, for the provenance of its sets."""
    data_dir = {"data_dir": config.data_dir} if config.data_dir else {}
    return {"dataset": config.dataset, **data_dir, **config.load_options.changed_fields()}


def is_same_dataset(dataset: str, other: str) -> bool:
    """Return whether two names or paths mean the same dataset."""
    names = [find_registered_name(text) if os.sep not in text else None for text in (dataset, other)]
    if any(names):
        return names[0] == names[1]
    try:
        return os.path.samefile(dataset, other)
    except (OSError, ValueError):  # a missing path, or text from a damaged file that cannot be a path
        return dataset == other


def reload_data(
    config: DatasetConfig, directory: Path, moved_to: str | None = None, test_moved_to: str | None = None
) -> Splits:
    """Load the data that a run or an experiment began with.

    Args:
        config: The plan or the config of the experiment.
        directory: The run directory, for error messages.
        moved_to: Path of the dataset now, if it has moved.
        test_moved_to: Path of the test images now, if they were given by their own path and have moved.

    Raises:
        UserError: The data are missing or have changed.
    """
    options = config.load_options
    if test_moved_to is not None:
        check(options.test is not None, f"{directory} has no test images of their own path", test_moved_to)
        options = resolve_load_options(options.changed_fields() | {"test": test_moved_to})
    try:
        splits = load_splits(moved_to or config.dataset, config.data_dir, options)[0]
    except UserError as error:
        flags = "--dataset or --data-dir" if options.test is None else "--dataset, --test or --data-dir"
        hint = f"if the dataset has moved, give its path with {flags}"
        raise UserError(f"{error}; {hint}", details=error.details) from None
    train_differs = splits.train.fingerprint != config.fingerprint
    test_differs = config.test_fingerprint != "" and splits.require_test().fingerprint != config.test_fingerprint
    if train_differs or test_differs:
        if moved_to:
            raise UserError(f"{moved_to} is not the dataset that {directory} began with")
        raise UserError(f"{config.dataset} has changed since {directory} began: start a new run")
    if not moved_to:
        return splits
    name = name_dataset(Path(config.dataset))  # presets depend on the name
    test = splits.test and dataclasses.replace(splits.test, name=name)
    return Splits(train=dataclasses.replace(splits.train, name=name), test=test)
