"""Open datasets by name or path, without reading pixels from image files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from condenset.data.datasets.download import download_dataset
from condenset.data.datasets.imagenet import read_tinyimagenet
from condenset.data.datasets.sources import DATASETS, find_registered_name
from condenset.data.folders.layouts import SPLIT_NAMES
from condenset.data.folders.reading import read_folder
from condenset.data.imports.memmap import is_memmap, list_memmaps, memmap_directory, read_memmap
from condenset.data.reading.class_names import match_classes
from condenset.data.reading.hold_out import hold_out_test
from condenset.data.reading.lazy import LazyDataset
from condenset.data.reading.npy_files import read_npz
from condenset.data.reading.options import FILE_OPTIONS, LoadOptions
from condenset.errors import (
    UserError,
    by_interface,
    check,
    check_path_encoding,
    check_type,
    format_command,
    option,
    warn_user,
)
from condenset.io.dataset_names import can_be_name, missing_dataset_error
from condenset.io.metadata import holds_config
from condenset.io.user_directories import absolute_path, data_directory, expand_user

PathLike = str | os.PathLike[str]


def open_dataset(
    name_or_path: PathLike,
    data_dir: Path,
    options: LoadOptions,
    *,
    complete: bool = False,
    download: bool = False,
) -> tuple[LazyDataset, str]:
    """Open a dataset with its own test split, without reading pixels from image files; return it with its name.

    Args:
        name_or_path: What `load` accepts.
        data_dir: The directory of datasets.
        options: How to read it. `choose_test` uses the fields `test` and `test_share`.
        complete: Raise a UserError, not only a warning, if a registered dataset lacks images. Images that
            `options.skip_bad` leaves out may be missing.
        download: Download a registered dataset first if it is missing.
    """
    check_type(name_or_path, (str, os.PathLike), "a dataset must be a name or a path")
    text = os.fspath(name_or_path)
    check(text != "", "a dataset must be a name or a path", text)
    is_name, registered = can_be_name(name_or_path), registered_name(name_or_path)
    if registered is not None:
        if download:
            download_dataset(registered, data_dir)
        dataset, name = _open_registered(registered, data_dir, options), registered
        _check_complete(dataset, registered, required=complete and not options.skip_bad)
    elif is_name and is_memmap(memmap_directory(data_dir, text)):
        dataset, name = read_memmap(memmap_directory(data_dir, text)), text
    else:
        path = _to_path(text)
        dataset, name = _open_path(path, data_dir, options, is_name=is_name), name_dataset(path.resolve())
    check_size(dataset, name, options.size)
    return dataset, name


def name_dataset(path: Path) -> str:
    """Return the name of the dataset at a path: that of the parent if the folder is named like a split."""
    named = path.parent if path.name.lower() in SPLIT_NAMES and path.parent.name else path
    return named.name.removesuffix(".npz")


def absolute_dataset_path(dataset: PathLike, data_dir: PathLike | None) -> str:
    """Return the absolute path of a dataset, or the name unchanged if it is the name of a known dataset.

    A run may be resumed from another working directory, where a relative path would not be found.
    """
    text = os.fspath(dataset)
    is_unchanged = text == "" or is_known_name(dataset, data_dir) or not expand_user(text).exists()
    return text if is_unchanged else absolute_path(text)


def is_known_name(dataset: PathLike, data_dir: PathLike | None) -> bool:
    """Return whether this is the name of a registered or an imported dataset, not a path."""
    if not can_be_name(dataset):
        return False
    return registered_name(dataset) is not None or dataset in list_memmaps(data_directory(data_dir))


def make_origin(name_or_path: PathLike, data_dir: PathLike | None, options: LoadOptions) -> dict[str, Any]:
    """Return how to load images again from any working directory: the field `origin` of ImageData."""
    directory = {} if data_dir is None else {"data_dir": absolute_path(data_dir)}
    test = {} if options.test is None else {"test": absolute_path(options.test)}
    dataset = absolute_dataset_path(name_or_path, data_dir)
    return {"dataset": dataset, **directory, **options.changed_fields(), **test}


def _to_path(text: str) -> Path:
    path = expand_user(text)
    check_path_encoding(path)
    return path


def registered_name(name_or_path: PathLike) -> str | None:
    """Return the registered dataset that the user asks for, or None for any other name and for a path."""
    return find_registered_name(os.fspath(name_or_path)) if can_be_name(name_or_path) else None


def _open_registered(name: str, data_dir: Path, options: LoadOptions) -> LazyDataset:
    source = DATASETS[name]
    directory = data_dir if source.is_bundled else source.locate(data_dir)
    if directory is None:
        python = f"download it with {option('download', True)}"
        download = by_interface(command_line=f"get it with 'condenset data get {name}'", python=python)
        hint = download if source.downloads else f"{source.instructions} {data_dir / name}"
        other = option("data_dir")
        raise UserError(f"{name} is not in {data_dir}: {hint}, or give the directory it is in with {other}")
    dataset = source.read(directory, options)
    shape = dataset.train.shape[1:]
    if options.size is None and shape != source.shape:
        expected, actual = ("x".join(map(str, sizes)) for sizes in (source.shape, shape))
        raise UserError(f"the images of {name} in {directory} must be {expected}, but got {actual}")
    return dataclasses.replace(dataset, mean=source.mean, std=source.std, allow_hflip=source.allow_hflip)


def _set_hint(path: Path) -> str:
    return by_interface(
        command_line=f"see '{format_command('show', path)}'", python="read a set with cs.CondensedSet.load"
    )


def _open_path(path: Path, data_dir: Path, options: LoadOptions, *, is_name: bool) -> LazyDataset:
    if path.is_dir():
        if holds_config(path):
            raise UserError(f"{path} contains a run, not a dataset; {_set_hint(path)}")
        if is_memmap(path):
            return read_memmap(path)
        return read_tinyimagenet(path, options) if (path / "wnids.txt").is_file() else read_folder(path, options)
    if path.suffix == ".npz":
        return read_npz(path, options)
    if path.exists():
        hint = f"; {_set_hint(path)}" if path.suffix == ".safetensors" else ""
        raise UserError(f"a dataset file must end in .npz, but got '{path}'{hint}")
    raise missing_dataset_error(path, [*DATASETS, *list_memmaps(data_dir)] if is_name else [])


def check_size(dataset: LazyDataset, name: str, size: int | None) -> None:
    """Check that the images have the size that the user asks for, if there is one."""
    actual = dataset.train.shape[-1]
    if size is not None and actual != size:
        rule = f"the images of {name} are {actual}x{actual}, and only image files and .npz files can be resized"
        raise UserError(f"{rule}, but got size {size}")


def _check_complete(dataset: LazyDataset, name: str, *, required: bool) -> None:
    """Warn if a registered dataset has another number of images than it should; raise a UserError if `required`."""
    source, counts = DATASETS[name], [split.shape[0] for split in dataset.splits.values()]
    if counts == [source.num_train, source.num_test]:
        return
    expected = f"{source.num_train} train and {source.num_test} test images"
    actual = " and ".join(map(str, counts))
    if required:
        raise UserError(f"{name} must have {expected}, but got {actual} in {dataset.source}")
    warn_user(f"{name} should have {expected}, but has {actual} in {dataset.source}")


def choose_test(
    dataset: LazyDataset, name: str, options: LoadOptions, data_dir: Path, *, allow_copy: bool = False
) -> LazyDataset:
    """Return a dataset with the test split that the options ask for: its own, other images or a hold-out.

    Args:
        dataset: The dataset.
        name: Its name, for error messages.
        options: How it is read.
        data_dir: The directory of datasets.
        allow_copy: Allow a hold-out from an imported dataset, whose images are then not memory-mapped.
    """
    if options.test is not None:
        return _replace_test(dataset, options.test, options, data_dir)
    if options.test_share is None:
        return dataset
    if dataset.test is not None:
        raise UserError(f"{name} has a test split, so there is nothing to hold out: leave out {option('test_share')}")
    if dataset.train.data is not None and not allow_copy:
        hint = f"import it again with {option('test_share', 0.2)}, or give the test images with {option('test')}"
        raise UserError(f"{name} was imported without test images, and holding some out would copy it: {hint}")
    return hold_out_test(dataset, options.test_share)


def warn_about_unused(options: LoadOptions, dataset: LazyDataset, name: str) -> None:
    """Warn about options that say how to read image files if the dataset was read without them.

    They are no error, because a run that began with a folder may be resumed with the imported dataset.
    """
    unused = FILE_OPTIONS - dataset.used_options
    names = [option(field, value) for field, value in options.changed_fields().items() if field in unused]
    if names:
        warn_user(f"options without effect on {name}: {', '.join(names)}")


def _replace_test(dataset: LazyDataset, test: str, options: LoadOptions, data_dir: Path) -> LazyDataset:
    """Return a dataset with the images at the path `test` as its test split."""
    path = _to_path(test)
    other = _open_path(path, data_dir, options, is_name=False)
    if other.test is not None:
        raise UserError(f"the test images must be one split, but {path} has several: name one of them")
    test_split = dataclasses.replace(other.train, data=None)  # mapped images have other constants
    train, split = dataset.train, match_classes(test_split, other.class_names, dataset.class_names, str(path))
    if train.shape[1] == 3:
        split = split.to_rgb()
    elif split.shape[1] == 3 and dataset.mean is None:  # registered constants are for a fixed number of channels
        train = train.to_rgb()
    source = f"{dataset.source}; test images from {path}"
    return dataclasses.replace(
        dataset,
        train=train,
        test=split,
        source=source,
        scan=dataset.scan + other.scan,
        used_options=dataset.used_options | other.used_options,
    )
