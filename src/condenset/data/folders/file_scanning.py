"""Scan image files before they are decoded: their modes, sizes and target shape, and the unreadable ones."""

from __future__ import annotations

import hashlib
import os
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from joblib import Parallel, cpu_count, delayed

from condenset.data.file_scan import FileScan, scan_settings
from condenset.data.folders.image_decoding import (
    GREY_MODES,
    TargetShape,
    UnreadableImageError,
    check_source_size,
    is_16_bit,
    make_target_shape,
    open_image,
    oriented_size,
    read_image,
    read_maximum,
    to_user_error,
)
from condenset.data.folders.image_files import (
    MAX_GROUP,
    MAX_NAMED_FILES,
    MAX_WORKERS,
    filter_pillow_warnings,
    raise_first,
    warn_about_unreadable,
)
from condenset.data.options import LoadOptions
from condenset.data.path_list import PathList
from condenset.errors import UserError, option
from condenset.io.progress import show_progress

MAX_RANGE_FILES = 64  # files of 16 bits whose values are read before the images

T = TypeVar("T")


class ImageHeader(NamedTuple):
    """The header of an image file."""

    mode: str
    size: tuple[int, int]
    is_16_bit: bool


@dataclass
class HeaderSummary:
    """A summary of the headers of all files. It needs little memory for millions of files.

    Attributes:
        modes, sizes: Number of files, as in `FileScan`.
        first_paths: The first file of each size.
        rows_16_bit: The positions of the files of 16 bits.
        errors: Why files cannot be read.
    """

    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_paths: dict[tuple[int, int], str] = field(default_factory=dict)
    rows_16_bit: array[int] = field(default_factory=lambda: array("q"))
    errors: dict[str, UserError] = field(default_factory=dict)


def scan_files(
    paths: PathList, options: LoadOptions, target: TargetShape | None = None
) -> tuple[TargetShape, FileScan]:
    """Choose the target shape of image files; with `options.skip_bad`, find the files that cannot be read.

    Args:
        paths: The files.
        options: How to read them.
        target: The target shape, if it is fixed. None: one channel if all images are grey, and without
            `options.size` the size of the first image.

    Returns:
        The target shape, and the modes, sizes and unreadable files. If the target is fixed and no file may be left out,
        no file is opened, and the scan has only the hash of the files, which imports need.

    Raises:
        UserError: A file cannot be read and `options.skip_bad` is false, or the sizes differ without `options.size`.
    """
    settings = scan_settings()
    files_hash = _hash_files(paths) if settings.for_import else ""
    undecodable = {path: settings.unreadable[path] for path in paths if path in settings.unreadable}
    if target is not None and (settings.for_import or not options.skip_bad):  # opening a million files takes minutes
        return target, FileScan(unreadable=undecodable, files_hash=files_hash)
    skip_bad = options.skip_bad or settings.for_import
    with filter_pillow_warnings():
        headers = _read_headers(paths, use_exif=target is None or target.use_exif)
        if not headers.sizes or not skip_bad:
            raise_first(headers.errors, all_failed=not headers.sizes)
        target = target or _detect_target_shape(headers, options)
        if options.skip_bad and not settings.for_import:
            undecodable = _find_undecodable(paths.without(headers.errors), target)
        left_out = _read_headers(PathList.from_paths(undecodable), use_exif=target.use_exif)
    reasons = {**undecodable, **{path: str(error) for path, error in headers.errors.items()}}
    unreadable = {path: reasons[path] for path in paths if path in reasons}
    _warn_about_range(paths, headers.rows_16_bit, target.white_level)
    if not settings.for_import:
        warn_about_unreadable(unreadable)
    modes, sizes = headers.modes - left_out.modes, headers.sizes - left_out.sizes
    return target, FileScan(paths.without(unreadable), modes, sizes, unreadable, files_hash)


def _hash_files(paths: PathList) -> str:
    """Return a hash of the names, sizes and times of files, to check whether an import can continue."""
    digest = hashlib.blake2b(digest_size=16)
    with show_progress("checking file times", len(paths), verbose=scan_settings().verbose) as advance:
        for path in paths:
            identity = "missing"
            with suppress(OSError):
                status = os.stat(path)
                identity = f"{status.st_size} {status.st_mtime_ns}"
            digest.update(os.fsencode(path) + f"\0{identity}\0".encode())
            advance(1)
    return digest.hexdigest()


def _read_headers(paths: PathList, *, use_exif: bool) -> HeaderSummary:
    summary = HeaderSummary()

    def read_group(group: Sequence[str]) -> list[ImageHeader | UserError]:
        return [_read_header(path, use_exif=use_exif) for path in group]

    for row, (path, header) in enumerate(_map_files(read_group, paths, "reading image headers")):
        if isinstance(header, UserError):
            summary.errors[path] = header
            continue
        summary.modes[header.mode] += 1
        summary.sizes[header.size] += 1
        summary.first_paths.setdefault(header.size, path)
        if header.is_16_bit:
            summary.rows_16_bit.append(row)
    return summary


def _read_header(path: str, *, use_exif: bool) -> ImageHeader | UserError:
    try:
        with open_image(path) as image:
            return ImageHeader(image.mode, oriented_size(image) if use_exif else image.size, is_16_bit(image))
    except Exception as error:  # the exceptions that Pillow raises for a broken file depend on the format
        return to_user_error(path, error)


def _map_files(
    function: Callable[[Sequence[str]], list[T]], paths: PathList, description: str
) -> Iterator[tuple[str, T]]:
    """Yield each file with the result of `function`, which threads call for groups of files. Show progress."""
    groups = (paths[start : start + MAX_GROUP] for start in range(0, len(paths), MAX_GROUP))
    workers = Parallel(min(cpu_count(), MAX_WORKERS), backend="threading", return_as="generator")
    with show_progress(description, len(paths), verbose=scan_settings().verbose) as advance:
        all_paths = iter(paths)
        for results in workers(delayed(function)(group) for group in groups):
            for result in results:
                yield next(all_paths), result
            advance(len(results))


def _detect_target_shape(headers: HeaderSummary, options: LoadOptions) -> TargetShape:
    size, path = next(iter(headers.first_paths.items()))
    is_grey = all(mode in GREY_MODES for mode in headers.modes)
    try:
        target = make_target_shape(path, size, is_grey=is_grey, options=options)
        for size, path in headers.first_paths.items():
            check_source_size(path, size, target)
    except UserError as error:
        sizes = headers.sizes.most_common()
        common = ", ".join(f"{width}x{height} ({count:,})" for (width, height), count in sizes[:MAX_NAMED_FILES])
        raise UserError(str(error), details=f"sizes: {common}{', …' * (len(sizes) > MAX_NAMED_FILES)}") from None
    return target


def _find_undecodable(paths: PathList, target: TargetShape) -> dict[str, str]:
    """Decode every file and return why some cannot be decoded."""

    def decode_group(group: Sequence[str]) -> list[UserError | None]:
        return [_try_to_decode(path, target) for path in group]

    decoded = _map_files(decode_group, paths, "searching for unreadable images")
    return {path: str(error) for path, error in decoded if error is not None}


def _try_to_decode(path: str, target: TargetShape) -> UserError | None:
    try:
        read_image(path, target)
    except UnreadableImageError as error:
        return error
    except UserError:  # a wrong option, such as a low white level: reading the images reports it
        return None
    return None


def _warn_about_range(paths: PathList, rows: Sequence[int], white_level: int) -> None:
    """Warn if some files of 16 bits, evenly chosen, use only the lowest quarter of the range."""
    step = -(-len(rows) // MAX_RANGE_FILES)
    maxima = []
    for row in rows[::step] if rows else ():
        with suppress(Exception):  # a damaged file is reported where the images are read
            maxima.append(read_maximum(paths[row]))
    if maxima and max(maxima) <= white_level / 4:
        level = max(255, (1 << max(maxima).bit_length()) - 1)
        values = f"16-bit files have values up to {max(maxima)} only, but {white_level} is white"
        hint = f"give {option('white_level', level)} unless the images are meant to be dark"
        warnings.warn(f"{values}; {hint}", stacklevel=3)
