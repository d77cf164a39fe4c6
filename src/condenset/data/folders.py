"""Class folders: one folder of image files per class. Files are listed first and decoded later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import cpu_count
from numpy.typing import NDArray

from condenset.data.image_data import ImageData
from condenset.data.image_files import TargetShape, check_image_size, decode_images, detect_target_shape
from condenset.data.lazy import (
    HELD_OUT_NOTE,
    Labels,
    LazyDataset,
    LazySplit,
    Pixels,
    hold_out,
    make_image_data,
    read_into_memory,
)
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm")
TEST_FOLDERS = ("test", "val", "valid", "validation")
SPLIT_NAMES = {"train", "training", "testing", "eval", *TEST_FOLDERS}
MIN_FILES_FOR_PROCESSES = 20_000  # for fewer files, starting processes takes longer than they save


@dataclass(frozen=True)
class ImageFiles:
    """Image files with their labels, in class order."""

    paths: list[str]
    labels: Labels
    class_names: tuple[str, ...]

    def select(self, rows: NDArray[np.int64]) -> ImageFiles:
        """Return the files at these positions."""
        return ImageFiles([self.paths[row] for row in rows], self.labels[rows], self.class_names)

    def to_split(self, target: TargetShape) -> LazySplit:
        """Return a split that decodes the files when its pixels are read."""
        shape = (len(self.paths), target.channels, target.size, target.size)
        # On Windows a memory-mapped file cannot be removed while it is open.
        use_processes = len(self.paths) >= MIN_FILES_FOR_PROCESSES and cpu_count() > 2 and os.name != "nt"

        def fill(out: Pixels, start: int) -> None:
            decode_images(self.paths[start : start + len(out)], target, out, use_processes=use_processes)

        return LazySplit(shape, self.labels, fill)


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    allow_hflip: bool = True,
    verbose: bool = True,
) -> ImageData:
    """Read a folder of class folders (PATH/CLASS/**/image) as one split.

    Args:
        path: The folder.
        size: Image size in pixels. Images are cropped to their central square and resized. None leaves images as they
            are; they must then be square and have the same size.
        mean, std: Normalisation constants per channel; measured if None.
        name: Name of the dataset; the name of the folder if None.
        allow_hflip: Allow horizontal flips. Disable for text and digits.
        verbose: Show progress.

    Returns:
        The images, sorted by class. They have one channel if all files are grey.

    Raises:
        UserError: The folder has no class folders, or a file is not a readable image.

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
    check_image_size(size)
    folder = Path(path)
    files = list_class_files(folder)
    split = files.to_split(detect_target_shape(files.paths, size))
    name = name or folder.resolve().name
    images = read_into_memory(split, f"reading {name}", verbose=verbose)
    return make_image_data(
        images, split.labels, files.class_names, mean, std, name=name, source=str(folder), allow_hflip=allow_hflip
    )


def read_folder(root: Path, size: int | None = None) -> LazyDataset:
    """Read ROOT/train/CLASS and ROOT/test/CLASS (or val). For ROOT/CLASS alone, hold out a fifth for the test."""
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    folders = list_subfolders(root)
    if "train" in folders:
        for name in TEST_FOLDERS:  # an unlabelled test/, such as ImageNet's, has no folders: val/ is used instead
            if name in folders and list_subfolders(root / name):
                train, test = list_class_files(root / "train"), list_class_files(root / name)
                return make_folder_dataset(train, test, f"{root} (train, {name})", size=size)
    top = root / "train" if folders == ["train"] and list_subfolders(root / "train") else root
    files = list_class_files(top)
    train_rows, test_rows = hold_out(files.labels, files.class_names, str(top))
    source = f"{top}; {HELD_OUT_NOTE}"
    return make_folder_dataset(files.select(train_rows), files.select(test_rows), source, size=size)


def make_folder_dataset(
    train: ImageFiles, test: ImageFiles, source: str, target: TargetShape | None = None, *, size: int | None = None
) -> LazyDataset:
    """Return the dataset of two lists of files. If `target` is None, it is detected from the files and `size`."""
    mismatch = sorted(set(train.class_names) ^ set(test.class_names))
    if mismatch:
        split = "train" if mismatch[0] in train.class_names else "test"
        raise UserError(f"{source}: both splits must have the same classes, but only {split} has {mismatch[0]!r}")
    target = target or detect_target_shape([*train.paths, *test.paths], size)
    return LazyDataset(train.to_split(target), test.to_split(target), train.class_names, source)


def list_class_files(folder: Path) -> ImageFiles:
    """List FOLDER/CLASS/**/image: one class per folder, in sorted order."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    names = list_subfolders(folder)
    if not names:
        raise UserError(f"{folder} must contain one folder per class, but has no folders")
    _check_level(folder, names)
    paths: list[str] = []
    counts: list[int] = []
    for name in names:
        class_paths = find_images(str(folder / name))
        if not class_paths:
            raise UserError(f"{folder} has an empty class: no image in {name!r}")
        paths.extend(class_paths)
        counts.append(len(class_paths))
    # File names can be any bytes.
    class_names = tuple(os.fsencode(name).decode("utf-8", "backslashreplace") for name in names)
    return ImageFiles(paths, np.repeat(np.arange(len(names)), counts), class_names)


def list_subfolders(folder: Path) -> list[str]:
    """Return the names of the visible folders in a folder, sorted."""
    with wrap_os_errors(folder, "read"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def find_images(folder: str) -> list[str]:
    """Return the image files in a folder and its subfolders, sorted; hidden files and other types are ignored."""
    paths, folders = [], [folder]
    while folders:
        current = folders.pop()
        with wrap_os_errors(current, "read"), os.scandir(current) as scanned:
            entries = [entry for entry in scanned if not entry.name.startswith(".")]
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if entry.name.lower().endswith(EXTENSIONS) and not entry.is_dir(follow_symlinks=False):
                if not entry.is_file():  # reading a pipe would block, and a dangling link would be a lost image
                    raise UserError(f"{entry.path} is not a regular file")
                paths.append(entry.path)
    return sorted(paths)


def _check_level(folder: Path, names: Sequence[str]) -> None:
    """Check that the folders are classes, not splits and not one folder around all classes."""
    if len(names) > 1 and {name.lower() for name in names} <= SPLIT_NAMES:
        hint = "name them train and test (or val) and load the parent folder, or load one of them as one split"
        raise UserError(f"{folder} contains splits, {', '.join(names)}, instead of classes: {hint}")
    if len(names) == 1 and len(list_subfolders(folder / names[0])) > 1:
        with wrap_os_errors(folder / names[0], "read"), os.scandir(folder / names[0]) as entries:
            has_images = any(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
        if not has_images:
            raise UserError(f"{folder} contains one folder of folders, {names[0]!r}: use {folder / names[0]} instead")
