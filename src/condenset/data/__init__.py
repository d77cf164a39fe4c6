"""Datasets by name or path: `load` gives a training and a test split, `from_*` one split of your own."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from operator import sub
from pathlib import Path

from condenset.data.adapters import from_dataset
from condenset.data.arrays import from_arrays, read_npz
from condenset.data.download import fetch, get
from condenset.data.images import check_size, from_folder, read_folder
from condenset.data.imported import (
    check_import_name,
    imported_folder,
    imported_names,
    is_imported,
    raw_of,
    read_imported,
    verify_imported,
    write_imported,
)
from condenset.data.raw import PixelStats, Raw, blocks, read_splits
from condenset.data.sources import SOURCES, Download, Source, data_folder, find_source
from condenset.data.validation import split_off
from condenset.errors import UserError, check, check_kind, check_path
from condenset.folders import is_run
from condenset.types import Splits

__all__ = [
    "SOURCES",
    "Download",
    "Entry",
    "Report",
    "Source",
    "check_files",
    "data_folder",
    "describe",
    "fetch",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "get",
    "import_data",
    "load",
    "split_off",
]

PathLike = str | os.PathLike[str]
SAME_MEAN = 0.02  # how far a dataset's mean pixel may lie from the constant in use


def load(name_or_path: PathLike, *, data_dir: PathLike | None = None, size: int | None = None) -> Splits:
    """Both splits, in class order, of a known dataset, an imported one, a folder of images or an .npz file.

    size: image files are fitted to size x size; the datasets that are arrays have one size only.
    """
    opened, name = _open(name_or_path, data_folder(data_dir), size)
    return opened if isinstance(opened, Splits) else read_splits(opened, name)


def _open(name_or_path: PathLike, folder: Path, size: int | None) -> tuple[Raw | Splits, str]:
    """What a dataset argument names, not yet read where that takes long, and its name."""
    check_size(size)
    check_kind(name_or_path, (str, os.PathLike), "a dataset must be a name or a path")
    text = os.fspath(name_or_path)
    check(text != "", "a dataset must be a name or a path", text)
    is_name, key = isinstance(name_or_path, str) and _is_name(text), _known(name_or_path)
    opened: Raw | Splits
    if key is not None:
        opened, name = _open_source(key, folder, size), key
    elif is_name and is_imported(imported_folder(folder, text)):
        opened, name = read_imported(imported_folder(folder, text)), text
    else:
        path = Path(text).expanduser()
        check_path(path)
        opened, name = _open_path(path, folder, size, is_name), path.resolve().name.removesuffix(".npz")
    _check_fits(opened, name, size)
    return opened, name


def _check_fits(opened: Raw | Splits, name: str, size: int | None) -> None:
    found = opened.train.size if isinstance(opened, Splits) else opened.train.shape[-1]
    if size is not None and found != size:
        rule = f"the images of {name} are {found}x{found}, and only image files can be fitted to another size"
        raise UserError(f"{rule}, but got size {size}")


def _open_source(key: str, folder: Path, size: int | None) -> Raw:
    source = SOURCES[key]
    home = folder if source.bundled else source.locate(folder)
    if home is None:
        how = f"get it with 'condenset data get {key}'" if source.downloads else source.by_hand + f" {folder / key}"
        raise UserError(f"{key} is not in {folder}: {how}, or give the folder it is in with --data-dir")
    raw = source.read(home, size)
    found = raw.train.shape[1:]
    if size is None and found != source.shape:
        shapes = ("x".join(map(str, shape)) for shape in (source.shape, found))
        raise UserError("the images of {} in {} must be {}, but got {}".format(key, home, *shapes))
    return dataclasses.replace(raw, mean=source.mean, std=source.std, can_flip=source.can_flip)


def _open_path(path: Path, folder: Path, size: int | None, is_name: bool) -> Raw | Splits:
    if path.is_dir():
        if is_run(path):
            raise UserError(f"{path} holds a run, not a dataset; a set in it is read by cs.CondensedSet.load")
        return read_imported(path) if is_imported(path) else read_folder(path, size)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.exists():
        hint = "; a set is read by cs.CondensedSet.load" if path.suffix == ".safetensors" else ""
        raise UserError(f"a dataset file must end in .npz, but got '{path}'{hint}")
    if not is_name:
        raise UserError(f"no such folder or file: {path}")
    names = [*SOURCES, *imported_names(folder)]
    near = difflib.get_close_matches(str(path).lower(), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"dataset must be one of {', '.join(names)} or a path that exists, but got '{path}'{hint}")


def import_data(
    source: PathLike | Splits,
    name: str,
    *,
    data_dir: PathLike | None = None,
    size: int | None = None,
    overwrite: bool = False,
    can_flip: bool | None = None,
) -> Path:
    """Convert what `load` takes, or splits already loaded, to an imported set that opens at once; give its folder.

    Images are decoded block by block straight to disk, so the set may be larger than memory.
    """
    check_import_name(name)
    target = imported_folder(data_folder(data_dir), name)
    if target.exists() and not overwrite:
        raise UserError(f"{target} exists already; choose another name, or --overwrite it (overwrite=True in Python)")
    opened = source if isinstance(source, Splits) else _open(source, data_folder(data_dir), size)[0]
    _check_fits(opened, name, size)
    raw = raw_of(opened) if isinstance(opened, Splits) else opened
    if not isinstance(source, Splits) and (key := _known(source)):
        _check_whole(raw, key)
    if can_flip is not None:
        raw = dataclasses.replace(raw, can_flip=can_flip)
    write_imported(raw, target, overwrite=overwrite)
    return target


def _known(name_or_path: PathLike) -> str | None:
    """The key of the dataset that is asked for by its name; a path is nobody's but the user's, whatever its name."""
    text = os.fspath(name_or_path)
    return find_source(text) if isinstance(name_or_path, str) and _is_name(text) else None


def _is_name(text: str) -> bool:
    return not {"/", os.sep} & set(text) and text not in (".", "..", "~")


def _check_whole(raw: Raw, name: str) -> None:
    """Refuse a known dataset that has not all of its images."""
    known, counts = SOURCES[name], (raw.train.shape[0], raw.test.shape[0])
    if counts != (known.num_train, known.num_test):
        wanted = f"{known.num_train} train and {known.num_test} test images"
        raise UserError(f"{name} must have {wanted}, but got {counts[0]} and {counts[1]} in {raw.source}")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `check_files` found; mean and std are those in use, the measured ones are of train's pixels."""

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


def check_files(name_or_path: PathLike, *, data_dir: PathLike | None = None, size: int | None = None) -> Report:
    """Read every image of a dataset, a block at a time, and report; anything amiss is an error."""
    opened, name = _open(name_or_path, data_folder(data_dir), size)
    raw = raw_of(opened) if isinstance(opened, Splits) else opened
    stats = PixelStats(raw.train.shape[1])
    _visit(raw, name, stats.add)
    if isinstance(opened, Splits):
        verify_imported(opened)
    mean = None
    if key := _known(name_or_path):
        _check_whole(raw, key)
        mean = SOURCES[key].mean
    measured = stats.result()
    if mean and max(map(abs, map(sub, mean, measured[0]))) > SAME_MEAN:
        means = [" ".join(f"{value:.3f}" for value in values) for values in (mean, measured[0])]
        raise UserError(f"the pixels of {name} must have the mean {means[0]}, but got {means[1]}: another dataset?")
    return Report(
        name=name,
        num_train=raw.train.shape[0],
        num_test=raw.test.shape[0],
        num_classes=len(raw.class_names),
        shape=raw.train.shape[1:],
        mean=raw.mean or measured[0],
        std=raw.std or measured[1],
        measured_mean=measured[0],
        measured_std=measured[1],
        source=raw.source,
    )


def _visit(raw: Raw, name: str, visit: Callable[..., None]) -> None:
    for block in blocks(raw.train, f"checking {name}"):
        visit(block)
    for _ in blocks(raw.test, f"checking {name} (test)"):
        pass


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the list of datasets; state: bundled, ready, missing, imported or broken; where: its folder, if any."""

    name: str
    title: str
    state: str
    num_train: int
    num_test: int
    num_classes: int
    shape: tuple[int, ...]
    download_bytes: int = 0
    where: Path | None = None


def describe(data_dir: PathLike | None = None) -> list[Entry]:
    """Every dataset `load` knows by name: the known ones, then those imported into the data folder."""
    folder = data_folder(data_dir)
    entries = []
    for name, source in SOURCES.items():
        where = None if source.bundled else source.locate(folder)
        entries.append(
            Entry(
                name=name,
                title=source.title,
                state="bundled" if source.bundled else "ready" if where else "missing",
                num_train=source.num_train,
                num_test=source.num_test,
                num_classes=source.num_classes,
                shape=source.shape,
                download_bytes=source.download_bytes,
                where=where,
            )
        )
    return entries + [_imported_entry(folder, name) for name in imported_names(folder)]


def _imported_entry(folder: Path, name: str) -> Entry:
    where = imported_folder(folder, name)
    try:
        splits = read_imported(where)
    except UserError as error:  # one broken set must not hide the others
        return Entry(
            name=name, title=str(error), state="broken", num_train=0, num_test=0, num_classes=0, shape=(), where=where
        )
    return Entry(
        name=name,
        title=splits.train.source,
        state="imported",
        num_train=len(splits.train),
        num_test=len(splits.test),
        num_classes=splits.train.num_classes,
        shape=tuple(splits.train.images.shape[1:]),
        where=where,
    )
