"""Load datasets by name or path, and import them into memory-mapped files."""

from __future__ import annotations

import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any, Unpack

from condenset.config import make_config
from condenset.data.folders.image_files import UnreadableFilesWarning
from condenset.data.image_data import ImageData, Splits, check_test_differs
from condenset.data.imports.importing import write_import
from condenset.data.imports.memmap import check_import_name, memmap_directory, to_lazy_dataset
from condenset.data.reading.hold_out import TEST_SHARE
from condenset.data.reading.lazy import LazyDataset, read_split, read_splits
from condenset.data.reading.opening import (
    absolute_dataset_path,
    check_size,
    choose_test,
    make_origin,
    open_dataset,
    warn_about_unused,
)
from condenset.data.reading.options import LoadKeywords, LoadOptions, check_no_val_share
from condenset.data.split import train_val_split
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check_type, option
from condenset.io.progress import limit_progress
from condenset.io.user_directories import absolute_path, data_directory

PathLike = str | os.PathLike[str]


@torch_defaults()
def load(
    name_or_path: PathLike,
    *,
    data_dir: PathLike | None = None,
    download: bool = False,
    verbose: bool = True,
    **options: Unpack[LoadKeywords],
) -> Splits:
    """Load a dataset by name (registered or imported) or by path (a folder of images or an .npz file).

    Args:
        name_or_path: A name such as "cifar10" (see `cs.DATASETS`), the name of an imported dataset, a folder with
            train/CLASS and test/CLASS (or CLASS alone), or an .npz file.
        data_dir: The directory of datasets; by default $CONDENSET_DATA or the user's cache directory.
        download: Download a registered dataset first if it is missing.
        verbose: Show progress.
        **options: Fields of `LoadOptions`. `size` is the image size in pixels. `test` is the path of the test images.
            `test_share` is the share of every class to hold out for the test if there is no test split.
            `val_share` is the share of every class of the training images to return in place of the test images; both
            parts are those of `train_val_split`. The others say how image files are read: `fit`, `background`,
            `white_level`, `nested` and `skip_bad`.

    Returns:
        The training and the test images, sorted by class. The test images are None if there is no test split.

    Raises:
        UserError: The dataset is unknown, missing or damaged, or an option does not fit it.

    Example:
        >>> import condenset as cs
        >>> cs.load("digits", verbose=False)
        Splits(digits: 1,433 train and 364 test images of 1x8x8, 10 classes)
    """
    load_options = make_config(LoadOptions, "an option of load", dict(options))
    return load_splits(name_or_path, data_dir, load_options, download=download, verbose=verbose)[0]


def load_splits(
    name_or_path: PathLike,
    data_dir: PathLike | None,
    options: LoadOptions,
    *,
    needs_test: bool = False,
    download: bool = False,
    verbose: bool = True,
) -> tuple[Splits, LoadOptions]:
    """Load a dataset as `load` does, and return it with the options that load it again.

    Args:
        needs_test: If there is no test split, hold out the share `TEST_SHARE` of every class.
    """
    directory = data_directory(data_dir)
    with limit_progress(verbose):
        dataset, name = open_dataset(name_or_path, directory, options, download=download)
        if needs_test and dataset.test is None and options.test is None and options.test_share is None:
            options = dataclasses.replace(options, test_share=TEST_SHARE)
        dataset = choose_test(dataset, name, options, directory)
        warn_about_unused(options, dataset, name)
        if options.val_share is not None:
            dataset = dataclasses.replace(dataset, test=None)  # the test images are not read
        splits = read_splits(dataset, name)
        if options.val_share is not None:
            splits = Splits(*train_val_split(splits.train, options.val_share))
    splits = _record_origin(splits, make_origin(name_or_path, data_dir, options))
    check_test_differs(splits)
    return splits, options


def _record_origin(splits: Splits, origin: dict[str, Any]) -> Splits:
    train = dataclasses.replace(splits.train, origin=origin)
    test = splits.test and dataclasses.replace(splits.test, origin=_test_origin(origin))
    return Splits(train=train, test=test)


def _test_origin(origin: dict[str, Any]) -> dict[str, Any]:
    """Return the origin of the test images: if they have their own path, it is their dataset."""
    if "test" not in origin:
        return origin
    return {name: value for name, value in origin.items() if name != "test"} | {"dataset": origin["test"]}


def load_test_images(
    name_or_path: PathLike,
    data_dir: PathLike | None = None,
    options: LoadOptions | None = None,
    *,
    verbose: bool = True,
) -> ImageData:
    """Load the images to test on: the test split of a dataset if it has one, else all of its images."""
    directory, options = data_directory(data_dir), options or LoadOptions()
    with limit_progress(verbose):
        dataset, name = open_dataset(name_or_path, directory, options)
        dataset = choose_test(dataset, name, options, directory)
        warn_about_unused(options, dataset, name)
        data = read_split(dataset, dataset.test or dataset.train, name)
    return dataclasses.replace(data, origin=_test_origin(make_origin(name_or_path, data_dir, options)))


@torch_defaults()
def import_dataset(
    source: PathLike | Splits,
    name: str,
    *,
    data_dir: PathLike | None = None,
    overwrite: bool = False,
    allow_hflip: bool | None = None,
    verbose: bool = True,
    **options: Unpack[LoadKeywords],
) -> Path:
    """Convert a dataset to memory-mapped files, which open at once and may be larger than the memory.

    Args:
        source: A name or path that `load` accepts, or splits.
        name: The name to load it by.
        data_dir: The directory of datasets, as for `load`.
        overwrite: Replace an imported dataset of this name. Without it, a stopped or killed import of image files
            continues if it is called again with the same arguments.
        allow_hflip: Allow horizontal flips; by default as in the source.
        verbose: Show progress.
        **options: Fields of `LoadOptions`, as for `load`.

    Returns:
        The directory that was written.

    Raises:
        UserError: The source cannot be read, or the name is invalid or in use.
    """
    check_import_name(name)
    load_options = make_config(LoadOptions, "an option of import", dict(options))
    check_no_val_share(load_options, "an import")
    directory = data_directory(data_dir)
    target = memmap_directory(directory, name)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already; choose another name, or replace it with {option('overwrite', True)}")
    if not isinstance(source, Splits):
        check_type(source, (str, os.PathLike), "a dataset must be a name or a path")
        # The import records where the images come from.
        text = absolute_dataset_path(source, directory)
        source = text if isinstance(source, str) else Path(text)
    if load_options.test is not None:
        load_options = dataclasses.replace(load_options, test=absolute_path(load_options.test))
    fields = load_options.changed_fields()
    text = "" if isinstance(source, Splits) else os.fspath(source)
    arguments = {"source": text, "flip": allow_hflip, **{key: fields[key] for key in fields if key != "skip_bad"}}
    with limit_progress(verbose):
        dataset = _open_import(source, name, directory, load_options, allow_hflip)
        write_import(dataset, target, arguments=arguments, overwrite=overwrite)
    return target


def _open_import(
    source: PathLike | Splits,
    name: str,
    data_dir: Path,
    options: LoadOptions,
    allow_hflip: bool | None,
) -> LazyDataset:
    """Open the dataset to import, with the test split that the options ask for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadableFilesWarning)  # the import names them at the end
        if isinstance(source, Splits):
            dataset = to_lazy_dataset(source)
            check_size(dataset, name, options.size)
        else:
            dataset, _ = open_dataset(source, data_dir, options, complete=True)
        dataset = choose_test(dataset, name, options, data_dir, allow_copy=True)
    warn_about_unused(options, dataset, name)
    return dataset if allow_hflip is None else dataclasses.replace(dataset, allow_hflip=allow_hflip)
