"""Image files: find their shape and the unreadable ones, and decode them in parallel."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, cpu_count, delayed
from PIL import Image

from condenset.data.file_scan import DatasetWarning, FileScan
from condenset.data.folders.image_decoding import (
    GREY_MODES,
    GitLfsPointerError,
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
from condenset.data.lazy import Pixels
from condenset.data.options import LoadOptions
from condenset.errors import UserError, format_names, has_option, option

MAX_NAMED_FILES = 5  # in an error message, after the first
MAX_REASONS = 5  # why image files cannot be read, in the details of an error
MAX_RANGE_FILES = 64  # files of 16 bits whose values are read before the images
MAX_GROUP = 64  # files that a worker reads at a time
MAX_WORKERS = 16


class UnreadableFilesWarning(DatasetWarning):
    """Image files are left out because they cannot be read."""


class ImageHeader(NamedTuple):
    """What a file says about its image."""

    mode: str
    size: tuple[int, int]
    is_16_bit: bool


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
        The target shape, and the modes, sizes and unreadable files. The scan is empty if the target is fixed and no
        file may be left out.

    Raises:
        UserError: A file cannot be read and `options.skip_bad` is false, or the sizes differ without `options.size`.
    """
    if target is not None and not options.skip_bad:
        return target, FileScan()  # opening a million files would take minutes
    with filter_pillow_warnings():
        headers, errors = _read_headers(paths, use_exif=target is None or target.use_exif)
        if not headers or not options.skip_bad:
            _raise_first(errors, all_failed=not headers)
        target = target or _detect_target_shape(headers, options)
        if options.skip_bad:
            errors |= _find_undecodable(list(headers), target)
    unreadable = {path: str(errors[path]) for path in paths if path in errors}
    _warn_about_range([path for path, header in headers.items() if header.is_16_bit], target.white_level)
    if unreadable:
        names = format_names(list(unreadable), MAX_NAMED_FILES)
        message = f"{len(unreadable)} unreadable image files are left out: {names}"
        warnings.warn(message, UnreadableFilesWarning, stacklevel=2)
    readable = tuple(path for path in headers if path not in errors)
    modes, sizes = (Counter(getattr(headers[path], name) for path in readable) for name in ("mode", "size"))
    return target, FileScan(readable, modes, sizes, unreadable)


def _read_headers(paths: Sequence[str], *, use_exif: bool) -> tuple[dict[str, ImageHeader], dict[str, UserError]]:
    headers, errors = dict[str, ImageHeader](), dict[str, UserError]()
    for path in paths:
        try:
            with open_image(path) as image:
                size = oriented_size(image) if use_exif else image.size
                headers[path] = ImageHeader(image.mode, size, is_16_bit(image))
        except Exception as error:  # the exceptions that Pillow raises for a broken file depend on the format
            errors[path] = to_user_error(path, error)
    return headers, errors


def _detect_target_shape(headers: Mapping[str, ImageHeader], options: LoadOptions) -> TargetShape:
    path, first = next(iter(headers.items()))
    is_grey = all(header.mode in GREY_MODES for header in headers.values())
    try:
        target = make_target_shape(path, first.size, is_grey=is_grey, options=options)
        for path, header in headers.items():
            check_source_size(path, header.size, target)
    except UserError as error:
        sizes = Counter(header.size for header in headers.values()).most_common()
        common = ", ".join(f"{width}x{height} ({count:,})" for (width, height), count in sizes[:MAX_NAMED_FILES])
        raise UserError(str(error), details=f"sizes: {common}{', …' * (len(sizes) > MAX_NAMED_FILES)}") from None
    return target


def _find_undecodable(paths: Sequence[str], target: TargetShape) -> dict[str, UserError]:
    """Decode every file and return the errors of those that cannot be decoded."""
    tasks = (delayed(_try_to_decode)(path, target) for path in paths)
    errors = Parallel(min(cpu_count(), MAX_WORKERS), backend="threading")(tasks)
    return {path: error for path, error in zip(paths, errors, strict=True) if error is not None}


def _try_to_decode(path: str, target: TargetShape) -> UserError | None:
    try:
        read_image(path, target)
    except UnreadableImageError as error:
        return error
    except UserError:  # a wrong option, such as a low white level: reading the images reports it
        return None
    return None


def _warn_about_range(paths: Sequence[str], white_level: int) -> None:
    """Warn if some files of 16 bits, evenly chosen, use only the lowest quarter of the range."""
    step = -(-len(paths) // MAX_RANGE_FILES)
    maxima = []
    for path in paths[::step] if paths else ():
        with suppress(Exception):  # a damaged file is reported where the images are read
            maxima.append(read_maximum(path))
    if maxima and max(maxima) <= white_level / 4:
        level = max(255, (1 << max(maxima).bit_length()) - 1)
        values = f"16-bit files have values up to {max(maxima)} only, but {white_level} is white"
        hint = f"give {option('white_level', level)} unless the images are meant to be dark"
        warnings.warn(f"{values}; {hint}", stacklevel=3)


def unreadable_error(unreadable: Mapping[str, str], *, details: bool = True) -> UserError:
    """Return the error for unreadable image files.

    Args:
        unreadable: The files, with the reason.
        details: Give the first reasons too.
    """
    rule = f"image files must be readable, but {len(unreadable)} are not"
    hint = f"repair them, or leave them out with {option('skip_bad', True)}"
    return UserError(f"{rule}: {hint}", details=list_reasons(unreadable) if details else "")


def list_reasons(unreadable: Mapping[str, str]) -> str:
    """Return why the first unreadable files cannot be read, one line each."""
    return "\n".join([*unreadable.values()][:MAX_REASONS] + ["…"] * (len(unreadable) > MAX_REASONS))


def _raise_first(errors: Mapping[str, UserError], *, all_failed: bool) -> None:
    """Raise the error of the first file, if there is one, name further files and how to leave them out.

    Args:
        errors: The error of each file that failed.
        all_failed: No file is left, so that leaving out files does not help.
    """
    if not errors:
        return
    first, *other_paths = errors
    more = f" (and {len(other_paths)} more: {format_names(other_paths, MAX_NAMED_FILES)})" if other_paths else ""
    is_damaged = isinstance(errors[first], UnreadableImageError) and not isinstance(errors[first], GitLfsPointerError)
    hint = f"; leave out unreadable files with {option('skip_bad', True)}"
    hint = hint if is_damaged and not all_failed and has_option("skip_bad") else ""
    raise type(errors[first])(f"{errors[first]}{more}{hint}")


@contextmanager
def filter_pillow_warnings() -> Iterator[None]:
    """Make suspiciously large images an error and ignore Pillow's remarks on metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode_images(paths: Sequence[str], target: TargetShape, out: Pixels, *, use_processes: bool = False) -> None:
    """Decode image files into the rows of `out`, in parallel. Errors name the first file that failed.

    Args:
        paths: The files.
        target: The shape to crop and resize them to.
        out: The array (N, C, H, W) to write to.
        use_processes: Use processes instead of threads. Because of Python's global lock, threads decode at most about
            four thousand small images per second.
    """
    num_workers = min(cpu_count(), MAX_WORKERS)
    group_size = max(1, min(MAX_GROUP, len(paths) // (4 * num_workers)))
    with ExitStack() as stack:
        stack.enter_context(filter_pillow_warnings())  # outside the threads, where setting a filter is not safe
        shared = stack.enter_context(_shared_array(out.shape)) if use_processes else None
        if shared is None:
            workers, decode, pixels = Parallel(num_workers, backend="threading"), _decode_group, out
        else:
            workers = Parallel(num_workers, backend="loky", idle_worker_timeout=10)
            decode, pixels = _decode_group_in_process, shared
        starts = range(0, len(paths), group_size)
        tasks = (delayed(decode)(paths[start : start + group_size], target, pixels, start) for start in starts)
        errors = {path: error for group in workers(tasks) for path, error in group.items()}
        _raise_first(errors, all_failed=len(errors) == len(paths))
        if shared is not None:
            out[...] = shared


@contextmanager
def _shared_array(shape: tuple[int, ...]) -> Iterator[Pixels | None]:
    """Yield an array that processes fill together, or None if the disk has no space for it.

    It is a memory-mapped file. Pixels sent through pipes would cost this process as much time as decoding them.
    """
    try:
        directory = tempfile.TemporaryDirectory(prefix="condenset-")
    except OSError:
        yield None
        return
    with directory:
        path, shared = Path(directory.name) / "pixels", None
        with suppress(OSError), path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # without it a full disk kills the process when it writes to the map
                os.posix_fallocate(file.fileno(), 0, math.prod(shape))
            else:
                file.truncate(math.prod(shape))
            shared = np.memmap(path, np.uint8, "r+", shape=shape)
        yield shared


def _decode_group(paths: Sequence[str], target: TargetShape, out: Pixels, start: int) -> dict[str, UserError]:
    """Decode images into the rows of `out` from `start` on; return the errors by path."""
    errors = dict[str, UserError]()
    for row, path in enumerate(paths, start):
        try:
            out[row] = read_image(path, target)
        except UserError as error:
            errors[path] = error
    return errors


def _decode_group_in_process(
    paths: Sequence[str], target: TargetShape, out: Pixels, start: int
) -> dict[str, UserError]:
    with filter_pillow_warnings():
        return _decode_group(paths, target, out, start)
