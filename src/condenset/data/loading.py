"""Load datasets by name or path, and import them into memory-mapped files."""

from __future__ import annotations

import dataclasses
import difflib
import os
from pathlib import Path

from condenset.data.datasets.imagenet import read_tinyimagenet
from condenset.data.download import download_dataset
from condenset.data.folders import read_folder
from condenset.data.image_data import Splits
from condenset.data.image_files import check_image_size
from condenset.data.lazy import LazyDataset, read_splits
from condenset.data.memmap import (
    check_import_name,
    is_memmap,
    list_memmaps,
    memmap_directory,
    read_memmap,
    to_lazy_dataset,
    write_memmap,
)
from condenset.data.npy_files import read_npz
from condenset.data.sources import DATASETS, data_directory, find_registered_name
from condenset.errors import UserError, check, check_path_encoding, check_type
from condenset.io.metadata import holds_config

PathLike = str | os.PathLike[str]


def load(
    name_or_path: PathLike,
    *,
    data_dir: PathLike | None = None,
    size: int | None = None,
    download: bool = False,
    verbose: bool = True,
) -> Splits:
    """Load a dataset by name (registered or imported) or by path (a folder of images or an .npz file).

    Args:
        name_or_path: A name such as "cifar10" (see `cs.DATASETS`), the name of an imported dataset, a folder with
            train/CLASS and test/CLASS (or CLASS alone), or an .npz file. If there is no test split, every fifth image
            of a class is held out for the test.
        data_dir: The directory of datasets; by default $CONDENSET_DATA or the user's cache directory.
        size: Image size in pixels. Image files are cropped and resized to it; arrays have a fixed size.
        download: Download a registered dataset first if it is missing.
        verbose: Show progress.

    Returns:
        The training and the test images, sorted by class.

    Raises:
        UserError: The dataset is unknown, missing or damaged, or has another size.

    Example:
        >>> import condenset as cs
        >>> cs.load("digits", verbose=False)
        Splits(digits: 1,433 train and 364 test images of 1x8x8, 10 classes)
    """
    dataset, name = open_dataset(name_or_path, data_directory(data_dir), size, download=download, verbose=verbose)
    return dataset if isinstance(dataset, Splits) else read_splits(dataset, name, verbose=verbose)


def import_dataset(
    source: PathLike | Splits,
    name: str,
    *,
    data_dir: PathLike | None = None,
    size: int | None = None,
    overwrite: bool = False,
    allow_hflip: bool | None = None,
    verbose: bool = True,
) -> Path:
    """Convert a dataset to memory-mapped files, which open at once and may be larger than the memory.

    Args:
        source: A name or path that `load` accepts, or splits.
        name: The name to load it by.
        data_dir: The directory of datasets, as for `load`.
        size: Image size in pixels, as for `load`.
        overwrite: Replace an imported dataset of this name.
        allow_hflip: Allow horizontal flips; by default as in the source.
        verbose: Show progress.

    Returns:
        The directory that was written.

    Raises:
        UserError: The source cannot be read, or the name is invalid or in use.
    """
    check_import_name(name)
    directory = data_directory(data_dir)
    target = memmap_directory(directory, name)
    if target.exists() and not overwrite:
        raise UserError(
            f"{target} exists already; choose another name, or replace it with --overwrite (overwrite=True in Python)"
        )
    opened = source if isinstance(source, Splits) else open_dataset(source, directory, size, verbose=verbose)[0]
    _check_size(opened, name, size)
    dataset = to_lazy_dataset(opened) if isinstance(opened, Splits) else opened
    if not isinstance(source, Splits) and (registered := registered_name(source)):
        check_complete(dataset, registered)
    if allow_hflip is not None:
        dataset = dataclasses.replace(dataset, allow_hflip=allow_hflip)
    write_memmap(dataset, target, overwrite=overwrite, verbose=verbose)
    return target


def open_dataset(
    name_or_path: PathLike, data_dir: Path, size: int | None, *, download: bool = False, verbose: bool = True
) -> tuple[LazyDataset | Splits, str]:
    """Open what `load` accepts without reading pixels from image files; return it with its name."""
    check_image_size(size)
    check_type(name_or_path, (str, os.PathLike), "a dataset must be a name or a path")
    text = os.fspath(name_or_path)
    check(text != "", "a dataset must be a name or a path", text)
    can_be_name, registered = _can_be_name(name_or_path), registered_name(name_or_path)
    dataset: LazyDataset | Splits
    if registered is not None:
        if download:
            download_dataset(registered, data_dir, verbose=verbose)
        dataset, name = _open_registered(registered, data_dir, size), registered
    elif can_be_name and is_memmap(memmap_directory(data_dir, text)):
        dataset, name = read_memmap(memmap_directory(data_dir, text)), text
    else:
        path = Path(os.path.expanduser(text))  # Path.expanduser raises for an unknown user
        check_path_encoding(path)
        dataset, name = _open_path(path, data_dir, size, can_be_name), path.resolve().name.removesuffix(".npz")
    _check_size(dataset, name, size)
    return dataset, name


def registered_name(name_or_path: PathLike) -> str | None:
    """Return the registered dataset that the user asks for, or None for any other name and for a path."""
    return find_registered_name(os.fspath(name_or_path)) if _can_be_name(name_or_path) else None


def _can_be_name(name_or_path: PathLike) -> bool:
    if not isinstance(name_or_path, str):
        return False
    return not {"/", os.sep} & set(name_or_path) and name_or_path not in (".", "..", "~")


def _open_registered(name: str, data_dir: Path, size: int | None) -> LazyDataset:
    source = DATASETS[name]
    directory = data_dir if source.is_bundled else source.locate(data_dir)
    if directory is None:
        download = f"get it with 'condenset data get {name}' (download=True in Python)"
        hint = download if source.downloads else f"{source.instructions} {data_dir / name}"
        raise UserError(f"{name} is not in {data_dir}: {hint}, or give the directory it is in with --data-dir")
    dataset = source.read(directory, size)
    shape = dataset.train.shape[1:]
    if size is None and shape != source.shape:
        expected, actual = ("x".join(map(str, sizes)) for sizes in (source.shape, shape))
        raise UserError(f"the images of {name} in {directory} must be {expected}, but got {actual}")
    return dataclasses.replace(dataset, mean=source.mean, std=source.std, allow_hflip=source.allow_hflip)


def _open_path(path: Path, data_dir: Path, size: int | None, can_be_name: bool) -> LazyDataset | Splits:
    if path.is_dir():
        if holds_config(path):
            raise UserError(f"{path} contains a run, not a dataset; read its set with cs.CondensedSet.load")
        if is_memmap(path):
            return read_memmap(path)
        return read_tinyimagenet(path, size) if (path / "wnids.txt").is_file() else read_folder(path, size)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists():
        hint = "; read a set with cs.CondensedSet.load" if path.suffix == ".safetensors" else ""
        raise UserError(f"a dataset file must end in .npz, but got '{path}'{hint}")
    if not can_be_name:
        raise UserError(f"no such folder or file: {path}")
    names = [*DATASETS, *list_memmaps(data_dir)]
    nearest = difflib.get_close_matches(str(path).lower(), names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise UserError(f"dataset must be one of {', '.join(names)} or a path that exists, but got '{path}'{hint}")


def _check_size(dataset: LazyDataset | Splits, name: str, size: int | None) -> None:
    actual = dataset.train.size if isinstance(dataset, Splits) else dataset.train.shape[-1]
    if size is not None and actual != size:
        rule = f"the images of {name} are {actual}x{actual}, and only image files can be resized"
        raise UserError(f"{rule}, but got size {size}")


def check_complete(dataset: LazyDataset, name: str) -> None:
    """Check that a registered dataset has all of its images."""
    source, counts = DATASETS[name], (dataset.train.shape[0], dataset.test.shape[0])
    if counts != (source.num_train, source.num_test):
        expected = f"{source.num_train} train and {source.num_test} test images"
        raise UserError(f"{name} must have {expected}, but got {counts[0]} and {counts[1]} in {dataset.source}")
