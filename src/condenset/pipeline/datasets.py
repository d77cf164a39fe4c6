"""Store where the dataset of a run is, and load the same data again when the run is resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from condenset.config import make_config
from condenset.data.datasets.sources import find_registered_name
from condenset.data.image_data import Splits
from condenset.data.reading.file_scan import DatasetWarning
from condenset.data.reading.loading import load_splits
from condenset.data.reading.opening import absolute_dataset_path, name_dataset
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError, check
from condenset.io.user_directories import absolute_path
from condenset.pipeline.settings import RunSettings


def resolve_load_options(fields: Mapping[str, Any]) -> LoadOptions:
    """Return the options of a dataset, with an absolute path of the test images."""
    options = make_config(LoadOptions, "an option of load", dict(fields))
    if options.test is None:
        return options
    return dataclasses.replace(options, test=absolute_path(options.test))


@contextlib.contextmanager
def ignore_dataset_warnings() -> Iterator[None]:
    """Ignore remarks on the files of a dataset: the first command on these files has printed them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DatasetWarning)
        yield


def is_same_dataset(dataset: str, other: str) -> bool:
    """Return whether two names or paths mean the same dataset."""
    names = [find_registered_name(text) if os.sep not in text else None for text in (dataset, other)]
    if any(names):
        return names[0] == names[1]
    try:
        return os.path.samefile(dataset, other)
    except (OSError, ValueError):  # a missing path, or text from a damaged file that cannot be a path
        return dataset == other


def relocate(config: RunSettings, directory: Path, dataset: str | None, test: str | None) -> RunSettings:
    """Return the config of a run with the paths that its data have now.

    Args:
        config: The plan or the config of the experiment.
        directory: The run directory, for error messages.
        dataset: Path of the dataset now. None: it has not moved.
        test: Path of the test images now, if they were given by their own path. None: they have not moved.
    """
    options, new_dataset = config.load_options, config.dataset
    if dataset is not None:
        new_dataset = absolute_dataset_path(dataset, config.data_dir)
    if test is not None:
        check(options.test is not None, f"{directory} has no test images of their own path", test)
        options = resolve_load_options(options.changed_fields() | {"test": test})
    return dataclasses.replace(config, dataset=new_dataset, load_options=options)


def add_path_hint(error: UserError, options: LoadOptions) -> UserError:
    """Return an error about missing data that names the options of `resume` for moved data."""
    flags = "--dataset or --data-dir" if options.test is None else "--dataset, --test or --data-dir"
    return UserError(f"{error}; if the dataset has moved, give its path with {flags}", details=error.details)


def reload_data(config: RunSettings, moved: RunSettings | None, directory: Path) -> Splits:
    """Load the data that a run or an experiment began with.

    Args:
        config: The plan or the config of the experiment.
        moved: The same with the present paths of the data. None: the command has no options for these paths.
        directory: The run directory, for error messages.

    Raises:
        UserError: The data are missing or have changed.
    """
    present = moved or config
    try:
        with ignore_dataset_warnings():
            splits = load_splits(present.dataset, present.data_dir, present.load_options)[0]
    except UserError as error:
        if moved is None:
            raise
        raise add_path_hint(error, moved.load_options) from None
    train_differs = splits.train.fingerprint != config.fingerprint
    test_differs = config.test_fingerprint != "" and splits.require_test().fingerprint != config.test_fingerprint
    if train_differs or test_differs:
        path = present.dataset if train_differs else present.load_options.test or present.dataset
        if path not in (config.dataset, config.load_options.test):
            raise UserError(f"{path} is not the dataset that {directory} began with")
        raise UserError(f"{path} has changed since {directory} began: start a new run")
    if present.dataset == config.dataset:
        return splits
    name = name_dataset(Path(config.dataset))  # presets depend on the name
    test = splits.test and dataclasses.replace(splits.test, name=name)
    return Splits(train=dataclasses.replace(splits.train, name=name), test=test)
