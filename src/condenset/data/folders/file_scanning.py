"""Scan image files before they are decoded: their modes, sizes and target shape, and the unreadable ones."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from joblib import Parallel, cpu_count, delayed

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
from condenset.data.reading.file_scan import FileScan
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError, option, warn_user
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
    """A summary of the headers of all files.

    Attributes:
        modes, sizes: Number of files, as in `FileScan`.
        first_paths: The first file of each size.
        rows_16_bit: The positions of the files of 16 bits.
        errors: Why files cannot be read.
    """

    modes: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    first_paths: dict[tuple[int, int], str] = field(default_factory=dict)
    rows_16_bit: list[int] = field(default_factory=list)
    errors: dict[str, UserError] = field(default_factory=dict)


def scan_files(
    paths: Sequence[str], options: LoadOptions, target: TargetShape | None = None
) -> tuple[TargetShape, FileScan]:
    """Choose the target shape of image files; with `options.skip_bad`, find the files that cannot be read.

    Args:
        paths: The files.
        options: How to read them.
        target: The target shape, if it is fixed. None: one channel if all images are grey, and without
            `options.size` the size of the first image.

    Returns:
        The target shape, and the modes, sizes and unreadable files. If the target is fixed and no file may be left out,
        no file is opened.

    Raises:
        UserError: A file cannot be read and `options.skip_bad` is false, or the sizes differ without `options.size`.
    """
    if target is not None and not options.skip_bad:  # opening a million files takes minutes
        return target, FileScan(paths)
    with filter_pillow_warnings():
        headers = _read_headers(paths, use_exif=target is None or target.use_exif)
        if not headers.sizes:
            raise_first(headers.errors, all_failed=True)
        target = target or _choose_target(headers, options)
        reasons = {path: str(error) for path, error in headers.errors.items()}
        undecodable = dict[str, str]()
        if options.skip_bad:
            undecodable = _find_undecodable([path for path in paths if path not in reasons], target)
        left_out = _read_headers(list(undecodable), use_exif=target.use_exif)
    reasons |= undecodable
    unreadable = {path: reasons[path] for path in paths if path in reasons}
    _warn_about_range(paths, headers.rows_16_bit, target.white_level)
    warn_about_unreadable(unreadable)
    readable = [path for path in paths if path not in unreadable]
    return target, FileScan(readable, headers.modes - left_out.modes, headers.sizes - left_out.sizes, unreadable)


def _choose_target(headers: HeaderSummary, options: LoadOptions) -> TargetShape:
    """Return the target shape, or raise one error about all unreadable files and the wrong sizes."""
    try:
        target = _detect_target_shape(headers, options)
    except UserError as error:
        if not options.skip_bad:
            raise_first(headers.errors, all_failed=False, details=f"{error}\n{error.details}")
        raise
    if headers.errors and not options.skip_bad:
        raise_first(headers.errors, all_failed=False)
    return target


def _read_headers(paths: Sequence[str], *, use_exif: bool) -> HeaderSummary:
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
    function: Callable[[Sequence[str]], list[T]], paths: Sequence[str], description: str
) -> Iterator[tuple[str, T]]:
    """Yield each file with the result of `function`, which threads call for groups of files. Show progress."""
    groups = (paths[start : start + MAX_GROUP] for start in range(0, len(paths), MAX_GROUP))
    workers = Parallel(min(cpu_count(), MAX_WORKERS), backend="threading", return_as="generator")
    with show_progress(description, len(paths)) as advance:
        all_paths = iter(paths)
        for results in workers(delayed(function)(group) for group in groups):
            yield from zip(itertools.islice(all_paths, len(results)), results, strict=True)
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


def _find_undecodable(paths: Sequence[str], target: TargetShape) -> dict[str, str]:
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


def _warn_about_range(paths: Sequence[str], rows: Sequence[int], white_level: int) -> None:
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
        warn_user(f"{values}; {hint}")
