"""Check a dataset: read every image and report what was found."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np

from condenset.config import make_config
from condenset.data.datasets.sources import DATASETS
from condenset.data.folders.image_files import UnreadableFilesWarning
from condenset.data.image_data import same_images_error
from condenset.data.imports.memmap import is_memmap, verify_memmap
from condenset.data.reading.duplicates import hash_images
from condenset.data.reading.file_scan import FileScan
from condenset.data.reading.lazy import LazyDataset, PixelStats, iter_blocks
from condenset.data.reading.opening import choose_test, open_dataset, registered_name, warn_about_unused
from condenset.data.reading.options import LoadKeywords, LoadOptions, check_no_val_share
from condenset.errors import UserError, format_names
from condenset.io.progress import limit_progress
from condenset.io.user_directories import data_directory, expand_user

PathLike = str | os.PathLike[str]
MEAN_TOLERANCE = 0.02  # between the mean pixel of a dataset and its registered normalisation constant
MAX_ITEMS = 5  # modes, sizes, extensions and folders in the text of a report
MAX_CLASSES = 10  # of a report that names all classes


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """The result of `check_dataset`.

    Attributes:
        class_counts: Number of images per class, by split.
        mean, std: The normalisation constants that `load` uses.
        measured_mean, measured_std: The mean and standard deviation of the training images.
        modes: Number of image files per Pillow mode, the most frequent first. Empty unless the dataset is a folder.
        sizes: Number of image files per size, such as 640x480.
        num_shared: Number of test images whose pixels are those of a training image.
        ignored_files: Number of other files, by extension.
        ignored_folders: Folders without images of the dataset.
        unreadable: Image files that cannot be read, with the reason.
    """

    name: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...]
    class_counts: Mapping[str, Mapping[str, int]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    measured_mean: tuple[float, ...]
    measured_std: tuple[float, ...]
    num_shared: int
    source: str
    modes: Mapping[str, int]
    sizes: Mapping[str, int]
    ignored_files: Mapping[str, int]
    ignored_folders: Sequence[str]
    unreadable: Mapping[str, str]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (self.measured_mean, self.measured_std))
        test = f"{self.num_test:,} test" if self.num_test else "no test"
        counts = f"{self.num_train:,} train and {test} images of {shape}, {self.num_classes} classes"
        lines = [f"{self.name}: {counts}; pixel mean {mean}, std {std}", f"classes: {self._describe_classes()}"]
        lines += [f"modes: {_format_counts(self.modes)}", f"sizes: {_format_counts(self.sizes)}"] if self.modes else []
        if self.num_shared:
            verb = "image is also a training image" if self.num_shared == 1 else "images are also training images"
            lines.append(f"duplicates: {self.num_shared:,} test {verb}")
        if self.ignored_files:
            lines.append(f"ignored files: {_format_counts(self.ignored_files)}")
        if self.ignored_folders:
            lines.append(f"ignored folders: {format_names(self.ignored_folders, MAX_ITEMS)}")
        if self.unreadable:
            lines.append(f"unreadable files: {len(self.unreadable)}")
            lines += [f"  {reason}" for reason in self.unreadable.values()]
        return "\n".join(lines)

    def _describe_classes(self) -> str:
        """Name the classes from the smallest to the largest, with their training and test images."""
        train, test = self.class_counts["train"], self.class_counts.get("test")
        names = sorted(train, key=lambda name: train[name])
        texts = [f"{name} {train[name]:,}{f' + {test[name]:,}' if test else ''}" for name in names]
        if len(texts) <= MAX_CLASSES:
            return ", ".join(texts)
        return f"smallest {', '.join(texts[:3])}; largest {', '.join(texts[-3:])}"


def _format_counts(counts: Mapping[str, int]) -> str:
    texts = [f"{name} {count:,}" for name, count in counts.items()]
    more = f" and {len(texts) - MAX_ITEMS} more" if len(texts) > MAX_ITEMS else ""
    return ", ".join(texts[:MAX_ITEMS]) + more


def check_dataset(
    name_or_path: PathLike,
    *,
    data_dir: PathLike | None = None,
    verbose: bool = True,
    **options: Unpack[LoadKeywords],
) -> DatasetReport:
    """Read every image of a dataset, block by block, and report what it contains.

    Unreadable image files are in the report. Everything else that `load` refuses raises a UserError here too.
    """
    load_options = make_config(LoadOptions, "an option of check", dict(options))
    check_no_val_share(load_options, "a check")
    registered = registered_name(name_or_path)
    with limit_progress(verbose), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadableFilesWarning)  # the report names them
        opened = _open(name_or_path, data_directory(data_dir), load_options)
        pixels = _read_pixels(opened.dataset, opened.name)
    if registered:
        _check_mean(registered, pixels.mean)
    return _make_report(opened, pixels)


class OpenedDataset(NamedTuple):
    """A dataset to check, and the paths it is read from."""

    dataset: LazyDataset
    name: str
    paths: list[PathLike]


def _open(name_or_path: PathLike, data_dir: Path, options: LoadOptions) -> OpenedDataset:
    registered = registered_name(name_or_path)
    # A registered dataset must be complete.
    read_options = options if registered else dataclasses.replace(options, skip_bad=True)
    opened, name = open_dataset(name_or_path, data_dir, read_options, complete=True)
    paths = [] if registered or opened.train.data is not None else [name_or_path]
    paths += [] if options.test is None else [options.test]
    dataset = choose_test(opened, name, read_options, data_dir)
    verify_memmap(opened)
    warn_about_unused(options, dataset, name)
    return OpenedDataset(dataset, name, paths)


class PixelSummary(NamedTuple):
    """The mean and std of the training images, and the number of test images that are training images too."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_shared: int


def _read_pixels(dataset: LazyDataset, name: str) -> PixelSummary:
    stats, train_hashes, test_hashes = PixelStats(dataset.train.shape[1]), list[bytes](), list[bytes]()
    for block in iter_blocks(dataset.train, f"checking {name} (train)"):
        stats.add(block)
        train_hashes += hash_images(block) if dataset.test else []
    if dataset.test is not None:
        for block in iter_blocks(dataset.test, f"checking {name} (test)"):
            test_hashes += hash_images(block)
        if test_hashes == train_hashes and np.array_equal(dataset.test.labels, dataset.train.labels):
            raise same_images_error(name)
    shared = set(train_hashes)
    return PixelSummary(*stats.result(), sum(image_hash in shared for image_hash in test_hashes))


def _make_report(opened: OpenedDataset, pixels: PixelSummary) -> DatasetReport:
    dataset, names = opened.dataset, opened.dataset.class_names
    counts = {split: np.bincount(images.labels, minlength=len(names)) for split, images in dataset.splits.items()}
    ignored_files, ignored_folders = _find_ignored(opened.paths, dataset.scan)
    return DatasetReport(
        name=opened.name,
        num_train=dataset.train.shape[0],
        num_test=dataset.test.shape[0] if dataset.test else 0,
        num_classes=len(names),
        shape=dataset.train.shape[1:],
        class_counts={split: dict(zip(names, numbers.tolist(), strict=True)) for split, numbers in counts.items()},
        mean=dataset.mean or pixels.mean,
        std=dataset.std or pixels.std,
        measured_mean=pixels.mean,
        measured_std=pixels.std,
        num_shared=pixels.num_shared,
        source=dataset.source,
        modes=dict(dataset.scan.modes.most_common()),
        sizes={f"{width}x{height}": count for (width, height), count in dataset.scan.sizes.most_common()},
        ignored_files=dict(ignored_files.most_common()),
        ignored_folders=ignored_folders,
        unreadable=dict(dataset.scan.unreadable),
    )


def _find_ignored(roots: Iterable[PathLike], scan: FileScan) -> tuple[Counter[str], list[str]]:
    """Return the files below the folders that are not in use, by extension, and the folders without a file in use."""
    used, used_folders = {*scan.readable, *scan.unreadable}, set[str]()
    for folder in {os.path.dirname(path) for path in used}:
        while folder not in used_folders and folder != os.path.dirname(folder):
            used_folders.add(folder)
            folder = os.path.dirname(folder)
    files, folders = Counter[str](), list[str]()
    for root in map(expand_user, roots):
        if is_memmap(root):
            continue
        for current, names, file_names in os.walk(root):
            unused = [name for name in names if os.path.join(current, name) not in used_folders]
            folders += sorted(os.path.relpath(os.path.join(current, name), root) for name in unused)
            names[:] = [name for name in names if name not in unused]
            files.update(_kind(name) for name in file_names if os.path.join(current, name) not in used)
    return files, folders


def _kind(file_name: str) -> str:
    if file_name.startswith("."):
        return "hidden"
    return os.path.splitext(file_name)[1].lower() or "no extension"


def _check_mean(name: str, measured: tuple[float, ...]) -> None:
    expected = DATASETS[name].mean
    if expected and max(abs(a - b) for a, b in zip(expected, measured, strict=False)) > MEAN_TOLERANCE:
        means = [" ".join(f"{value:.3f}" for value in values) for values in (expected, measured)]
        hint = f"check that these are the files of {name}"
        raise UserError(f"the pixels of {name} must have the mean {means[0]}, but got {means[1]}; {hint}")
