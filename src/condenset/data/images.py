"""Image files in class folders: found first, decoded later, in parallel, into memory or onto disk."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import Parallel, cpu_count, delayed
from numpy.typing import NDArray
from PIL import Image, ImageOps

from condenset.data.guards import guard
from condenset.data.raw import HELD_OUT, Labels, Part, Pixels, Raw, hold_out, image_data, read_into_memory
from condenset.errors import UserError, check, listed, one_line
from condenset.types import ImageData

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm")
# Pillow looks at the content, not at the name: this keeps a .jpg that is PostScript from reaching an interpreter.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16L", "I;16B", "I;16N")
TEST_FOLDERS = ("test", "val", "valid", "validation")
SPLIT_NAMES = {"train", "training", "testing", "eval", *TEST_FOLDERS}
SIZE_MOST = 4096
NAMED = 5  # files at most, beside the first, that are named where many are wrong
GROUP = 64  # files that one thread or process reads at a time, at most
APART_FROM = 20_000  # files of a split, from which on processes pay, which take seconds to start


def check_size(size: int | None) -> None:
    """Refuse a size that no image can have; None leaves it to the images."""
    whole = isinstance(size, int) and not isinstance(size, bool)
    check(size is None or (whole and 1 <= size <= SIZE_MOST), f"size must be a whole number in 1..{SIZE_MOST}", size)


@dataclass(frozen=True)
class Frame:
    """What every image is brought to: `channels` x `size` x `size`; with fits=False it must have that size already."""

    channels: int
    size: int
    fits: bool

    def __post_init__(self) -> None:
        check_size(self.size)


@dataclass(frozen=True)
class ImageFiles:
    """Files and their labels, in class order."""

    paths: list[str]
    labels: Labels
    class_names: tuple[str, ...]

    def rows(self, rows: NDArray[np.int64]) -> ImageFiles:
        return ImageFiles([self.paths[row] for row in rows], self.labels[rows], self.class_names)

    def part(self, frame: Frame) -> Part:
        """The split that decodes these files when its pixels are asked for."""
        shape = (len(self.paths), frame.channels, frame.size, frame.size)
        apart = len(self.paths) >= APART_FROM and cpu_count() > 2 and os.name != "nt"  # where a mapped file stays

        def fill(out: Pixels, start: int) -> None:
            decode(self.paths[start : start + len(out)], frame, out, apart=apart)

        return Part(shape, self.labels, fill)


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted."""
    with guard(f"cannot read {folder}"), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def find_images(folder: str) -> list[str]:
    """The image files in a folder and below, in sorted order; hidden ones and other kinds are passed over."""
    found, folders = [], [folder]
    while folders:
        with guard(f"cannot read {folders[-1]}"), os.scandir(folders.pop()) as opened:
            entries = [entry for entry in opened if not entry.name.startswith(".")]
        folders += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        for entry in entries:
            if entry.name.lower().endswith(EXTENSIONS) and not entry.is_dir(follow_symlinks=False):
                if not entry.is_file():  # a pipe would block for ever, a dangling link would be a lost image
                    raise UserError(f"{entry.path} is not a regular file")
                found.append(entry.path)
    return sorted(found)


def find_classes(folder: Path) -> ImageFiles:
    """FOLDER/CLASS/**/image: a class for each folder, in sorted order."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}")
    names = subfolders(folder)
    if not names:
        raise UserError(f"{folder} must hold a folder for each class, but holds none")
    _check_level(folder, names)
    paths: list[str] = []
    counts: list[int] = []
    for name in names:
        before = len(paths)
        paths.extend(find_images(str(folder / name)))
        counts.append(len(paths) - before)
        if not counts[-1]:
            raise UserError(f"{folder} has an empty class: no image in {name!r}")
    readable = tuple(os.fsencode(name).decode("utf-8", "backslashreplace") for name in names)  # it may be any bytes
    return ImageFiles(paths, np.repeat(np.arange(len(names)), counts), readable)


def _check_level(folder: Path, names: Sequence[str]) -> None:
    """Refuse splits, or the one folder around everything, which would be taken for classes."""
    if len(names) > 1 and {name.lower() for name in names} <= SPLIT_NAMES:
        hint = "call them train and test (or val) and load the folder around them, or load one of them as one split"
        raise UserError(f"{folder} holds splits, {', '.join(names)}, where classes are expected: {hint}")
    if len(names) == 1 and len(subfolders(folder / names[0])) > 1:
        with guard(f"cannot read {folder / names[0]}"), os.scandir(folder / names[0]) as entries:
            flat = any(entry.name.lower().endswith(EXTENSIONS) for entry in entries)
        if not flat:
            raise UserError(f"{folder} holds one folder of folders, {names[0]!r}: give {folder / names[0]} instead")


def read_folder(root: Path, size: int | None = None) -> Raw:
    """ROOT/train/CLASS and ROOT/test/CLASS (or val), or ROOT/CLASS with a fifth of it held out."""
    if not root.is_dir():
        raise UserError(f"no such folder: {root}")
    if (root / "wnids.txt").is_file():
        return read_tinyimagenet(root, size)
    folders = subfolders(root)
    if "train" in folders:
        for name in TEST_FOLDERS:  # an unlabelled test/, like ImageNet's, has no folders: then val/ it is
            if name in folders and subfolders(root / name):
                return _splits(find_classes(root / "train"), find_classes(root / name), size, f"{root} (train, {name})")
    whole = root / "train" if folders == ["train"] and subfolders(root / "train") else root
    files = find_classes(whole)
    train, test = hold_out(files.labels, files.class_names, str(whole))
    return _splits(files.rows(train), files.rows(test), size, f"{whole}; {HELD_OUT}")


def from_folder(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    can_flip: bool = True,
) -> ImageData:
    """One folder of classes (PATH/CLASS/**/image) as one split; images of mixed sizes need a `size` to be fitted to."""
    check_size(size)
    folder = Path(path)
    files = find_classes(folder)
    part = files.part(probe(files.paths, size))
    title = name or folder.resolve().name
    images = read_into_memory(part, f"reading {title}")
    return image_data(images, part.labels, files.class_names, mean, std, title, str(folder), can_flip)


def _splits(train: ImageFiles, test: ImageFiles, size: int | None, source: str, frame: Frame | None = None) -> Raw:
    odd = sorted(set(train.class_names) ^ set(test.class_names))
    if odd:
        where = "train" if odd[0] in train.class_names else "test"
        raise UserError(f"{source}: both splits must have the same classes, but {odd[0]!r} is in {where} alone")
    frame = frame or probe([*train.paths, *test.paths], size)
    return Raw(train.part(frame), test.part(frame), train.class_names, source)


def read_imagenet(root: Path, size: int | None = None) -> Raw:
    """ImageNet-1K: ROOT/train/WNID and ROOT/val/WNID, every image fitted to 64x64 or the size given."""
    train, test = find_classes(root / "train"), find_classes(root / "val")
    return _splits(train, test, size, str(root), Frame(3, size or 64, fits=True))


def read_tinyimagenet(root: Path, size: int | None = None) -> Raw:
    """TinyImageNet, classes in the order of their WordNet ids; its val/ is the test."""
    train = find_classes(root / "train")
    annotated = (root / "val" / "val_annotations.txt").is_file()
    test = _annotated(root / "val", train.class_names) if annotated else find_classes(root / "val")
    raw = _splits(train, test, size, str(root), Frame(3, size or 64, fits=size is not None))
    names = readable_names(root / "words.txt", train.class_names)
    return Raw(raw.train, raw.test, names, raw.source)


def _annotated(folder: Path, class_names: tuple[str, ...]) -> ImageFiles:
    """TinyImageNet's val: images in one folder, their classes in val_annotations.txt."""
    known = {name: label for label, name in enumerate(class_names)}
    listing = folder / "val_annotations.txt"
    found: list[tuple[int, str]] = []
    for number, line in enumerate(_lines(listing), start=1):
        name, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in known:
            raise UserError(f"{listing}, line {number}: {wnid!r} is not one of the {len(known)} classes of train")
        if name in ("", ".", "..") or "/" in name or "\\" in name:
            raise UserError(f"{listing}, line {number}: {name!r} is not a file name")
        found.append((known[wnid], str(folder / "images" / name)))
    found.sort()
    return ImageFiles([path for _, path in found], np.array([label for label, _ in found], np.int64), class_names)


def _lines(path: Path) -> list[str]:
    with guard(f"cannot read {path}"):
        return [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]


def readable_names(words: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word that words.txt has for each id, or the id itself where two classes would share a word."""
    if not words.is_file():
        return wnids
    table = {wnid: text for wnid, _, text in (line.partition("\t") for line in _lines(words))}
    first = [table.get(wnid, "").split(",")[0].strip() for wnid in wnids]
    return tuple(word if word and first.count(word) == 1 else wnid for wnid, word in zip(wnids, first, strict=True))


def probe(paths: Sequence[str], size: int | None) -> Frame:
    """The frame that fits these files: one channel if all are grey; without a size, that of the first image."""
    modes, sizes, wrong = set[str](), list[tuple[int, int]](), dict[str, UserError]()
    with pillow_warnings():
        for path in paths:
            try:
                mode, shape = _header(path)
            except UserError as error:
                wrong[path] = error
            else:
                modes.add(mode)
                sizes.append(shape)
    _refuse(wrong)
    width, height = sizes[0]
    if size is None and width != height:
        raise UserError(f"{paths[0]} is {width}x{height}, not square: give a size (--size) to fit images to")
    return Frame(1 if modes <= set(GREY_MODES) else 3, size or width, fits=size is not None)


def _header(path: str) -> tuple[str, tuple[int, int]]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.mode, image.size
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> UserError:
    return error if isinstance(error, UserError) else UserError(f"{path} is not a readable image: {one_line(error)}")


def _refuse(wrong: Mapping[str, UserError]) -> None:
    """Say what is wrong with the first of these files, if there is one, and name others: all are to be seen to."""
    if not wrong:
        return
    (_, first), *others = wrong.items()
    more = f" (and {len(others)} more: {listed([path for path, _ in others], NAMED)})" if others else ""
    raise UserError(f"{first}{more}")


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """An image so large that Pillow suspects a trap is an error; its remarks on odd metadata are nobody's concern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(paths: Sequence[str], frame: Frame, out: Pixels, *, apart: bool = False) -> None:
    """Decode image files into the rows of `out`, in parallel; of those that fail the first in order is told of first.

    apart: by processes, because Python's lock lets threads decode no more than four thousand small images a second.
    """
    workers = min(cpu_count(), 16)
    group = max(1, min(GROUP, len(paths) // (4 * workers)))
    starts = range(0, len(paths), group)
    with ExitStack() as stack:
        stack.enter_context(pillow_warnings())  # here, around the threads: setting a filter is not safe inside them
        shared = stack.enter_context(_shared(out.shape)) if apart else None
        pool, work, target = Parallel(workers, backend="threading"), _read_group, out
        if shared is not None:
            pool, work, target = Parallel(workers, backend="loky", idle_worker_timeout=10), _read_group_apart, shared
        tasks = (delayed(work)(paths[start : start + group], frame, target, start) for start in starts)
        _refuse({path: error for errors in pool(tasks) for path, error in errors.items()})
        if shared is not None:
            out[...] = shared


@contextmanager
def _shared(shape: tuple[int, ...]) -> Iterator[Pixels | None]:
    """An array that processes can fill together, as pixels sent through a pipe would keep this one as busy as them.

    It is a file that all map; None where there is no room for one.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="condenset-")
    except OSError:
        yield None
        return
    with folder:
        path, shared = Path(folder.name) / "pixels", None
        with suppress(OSError), path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk is noticed in the map only, and kills the process
                os.posix_fallocate(file.fileno(), 0, math.prod(shape))
            else:
                file.truncate(math.prod(shape))
            shared = np.memmap(path, np.uint8, "r+", shape=shape)
        yield shared


def _read_group(paths: Sequence[str], frame: Frame, out: Pixels, start: int) -> dict[str, UserError]:
    """Read images into the rows of `out` from `start` on; returns what is wrong with those that cannot be."""
    wrong = dict[str, UserError]()
    for row, path in enumerate(paths, start):
        try:
            out[row] = read_image(path, frame)
        except UserError as error:
            wrong[path] = error
    return wrong


def _read_group_apart(paths: Sequence[str], frame: Frame, out: Pixels, start: int) -> dict[str, UserError]:
    with pillow_warnings():
        return _read_group(paths, frame, out, start)


def read_image(path: str, frame: Frame) -> Pixels:
    """One image file as (C, S, S)."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if (
                frame.fits
            ):  # a JPEG can be decoded at a half, quarter or eighth: twice as fast, same to half a grey level
                image.draft(None, (2 * frame.size, 2 * frame.size))
            return framed(image, frame, path)
    except Exception as error:  # what Pillow raises on a broken file depends on the format
        raise _unreadable(path, error) from None


def framed(image: Image.Image, frame: Frame, where: str) -> Pixels:
    """An image as (C, S, S): its middle square, shrunk or grown with antialiasing, in the frame's channels."""
    if not frame.fits and image.size != (frame.size, frame.size):
        size, wanted = f"{image.width}x{image.height}", f"{frame.size}x{frame.size}"
        raise UserError(f"{where} is {size} where the first image is {wanted}: give a size (--size) to fit all to")
    image = _eight_bits(image, where)
    if image.mode == "P" or "transparency" in image.info:
        image = image.convert("RGBA")  # else a transparent palette is turned into wrong colours, with a warning
    image = image.convert("L" if frame.channels == 1 else "RGB")
    if frame.fits:
        # The square is cut and scaled in one step: scaling first would make a long strip of a 1x100000 image.
        image = ImageOps.fit(image, (frame.size, frame.size), Image.Resampling.BICUBIC)
    pixels: Pixels = np.asarray(image)
    return pixels[None] if frame.channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bits(image: Image.Image, where: str) -> Image.Image:
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise UserError(f"{where} must have pixels of 8 or 16 bits, but its mode is {image.mode!r}")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))
