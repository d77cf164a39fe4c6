"""Class folders: one folder of image files per class. Files are listed first and decoded later."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from joblib import cpu_count

from condenset.config import make_config
from condenset.data.folders.file_scanning import scan_files
from condenset.data.folders.image_decoding import TargetShape
from condenset.data.folders.image_files import decode_images, list_reasons
from condenset.data.folders.layouts import find_split_folders, list_classes
from condenset.data.image_data import ImageData
from condenset.data.reading.class_names import match_classes
from condenset.data.reading.lazy import (
    Labels,
    LazyDataset,
    LazySplit,
    Pixels,
    Rows,
    make_image_data,
    read_into_memory,
)
from condenset.data.reading.options import FILE_OPTIONS, ImageKeywords, LoadOptions
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check_path
from condenset.io.progress import limit_progress
from condenset.io.user_directories import absolute_path, expand_user

MIN_FILES_FOR_PROCESSES = 20_000  # for fewer files, starting processes takes longer than they save


@dataclass(frozen=True)
class ImageFiles:
    """Image files with their labels, in class order."""

    paths: Sequence[str]
    labels: Labels
    class_names: tuple[str, ...]

    def without(self, unreadable: Mapping[str, str]) -> ImageFiles:
        """Return the files without these, given with the reason. Every class must have a file left."""
        if not unreadable:
            return self
        rows = np.flatnonzero([path not in unreadable for path in self.paths])
        empty = np.flatnonzero(np.bincount(self.labels[rows], minlength=len(self.class_names)) == 0)
        if len(empty):
            rule = f"class {self.class_names[empty[0]]!r} must have a readable image, but has none"
            raise UserError(rule, details=list_reasons(unreadable))
        return ImageFiles([self.paths[row] for row in rows.tolist()], self.labels[rows], self.class_names)

    def to_split(self, target: TargetShape) -> LazySplit:
        """Return a split that decodes the files when its pixels are read."""
        shape = (len(self.paths), target.channels, target.size, target.size)
        # On Windows a memory-mapped file cannot be removed while it is open.
        use_processes = len(self.paths) >= MIN_FILES_FOR_PROCESSES and cpu_count() > 2 and os.name != "nt"

        def fill(out: Pixels, rows: Rows) -> None:
            decode_images([self.paths[row] for row in rows], target, out, use_processes=use_processes)

        return LazySplit(shape, self.labels, fill)


@torch_defaults()
def from_folder(
    path: str | os.PathLike[str],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    allow_hflip: bool = True,
    verbose: bool = True,
    **options: Unpack[ImageKeywords],
) -> ImageData:
    """Read a folder of class folders (PATH/CLASS/image) as one split. `cs.load` reads a folder with splits.

    Args:
        path: The folder.
        mean: Mean of the pixels per channel, for normalisation; measured if None.
        std: Standard deviation per channel; measured if None.
        name: Name of the dataset; the name of the folder if None.
        allow_hflip: Allow horizontal flips. Disable for text and digits.
        verbose: Show progress.
        **options: How to read the files, as for `cs.load`: `size`, `fit`, `background`, `white_level`, `nested` and
            `skip_bad`.

    Returns:
        The images, sorted by class. They have one channel if all files are grey.

    Raises:
        UserError: The folder has no class folders or has splits, or a file is not a readable image.

    Example:
        >>> import pathlib, tempfile
        >>> import condenset as cs
        >>> from PIL import Image
        >>> root = pathlib.Path(tempfile.mkdtemp())
        >>> for class_name in ("cat", "dog"):
        ...     (root / class_name).mkdir()
        ...     Image.new("RGB", (40, 30)).save(root / class_name / "1.png")
        >>> cs.from_folder(root, size=32, name="pets", verbose=False)
        ImageData(pets: 2 images of 3x32x32, 2 classes)
    """
    load_options = make_config(LoadOptions, "an option of from_folder", dict(options))
    check_path("path", path)
    folder = expand_user(path)
    _check_one_split(folder, load_options)
    name = name or folder.resolve().name
    with limit_progress(verbose):
        files = list_class_files(folder, nested=load_options.nested)
        target, scan = scan_files(files.paths, load_options)
        files = files.without(scan.unreadable)
        split = files.to_split(target)
        images = read_into_memory(split, f"reading {name}")
    data = make_image_data(
        images, split.labels, files.class_names, mean, std, name=name, source=str(folder), allow_hflip=allow_hflip
    )
    return dataclasses.replace(data, origin={"dataset": absolute_path(folder), **load_options.changed_fields()})


def _check_one_split(folder: Path, options: LoadOptions) -> None:
    if (options.test, options.test_share, options.val_share) != (None, None, None):
        raise UserError("from_folder reads one split: give test, test_share and val_share to cs.load")
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    train, test = find_split_folders(folder, nested=options.nested)
    if test:
        raise UserError(f"{folder} has the splits {train.name} and {test.name}: read both with cs.load")


def read_folder(root: Path, options: LoadOptions) -> LazyDataset:
    """Read ROOT/train/CLASS and ROOT/test/CLASS (or val). For ROOT/CLASS alone, there is no test split."""
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    train_folder, test_folder = find_split_folders(root, nested=options.nested)
    train = list_class_files(train_folder, nested=options.nested)
    if test_folder is None:
        test, source = None, str(train_folder)
    else:
        test = list_class_files(test_folder, nested=options.nested)
        source = f"{root} (train: {train_folder.name}, test: {test_folder.name})"
    return dataclasses.replace(make_folder_dataset(train, test, source, options), used_options=FILE_OPTIONS)


def make_folder_dataset(
    train: ImageFiles, test: ImageFiles | None, source: str, options: LoadOptions, target: TargetShape | None = None
) -> LazyDataset:
    """Return the dataset of one or two lists of files. If `target` is None, it is detected from the files."""
    target, scan = scan_files([*train.paths, *(test.paths if test else [])], options, target)
    train, test = train.without(scan.unreadable), test and test.without(scan.unreadable)
    test_split = match_classes(test.to_split(target), test.class_names, train.class_names, source) if test else None
    used_options = FILE_OPTIONS - {"nested"}  # the files are listed
    return LazyDataset(
        train.to_split(target), test_split, train.class_names, source, scan=scan, used_options=used_options
    )


def list_class_files(folder: Path, *, nested: bool = False) -> ImageFiles:
    """List FOLDER/CLASS/image: one class per folder, in sorted order; see `list_classes`."""
    classes = list_classes(folder, nested=nested)
    # File names can be any bytes.
    class_names = tuple(os.fsencode(name).decode("utf-8", "backslashreplace") for name in classes)
    labels = np.repeat(np.arange(len(classes)), [len(paths) for paths in classes.values()])
    return ImageFiles([path for paths in classes.values() for path in paths], labels, class_names)
