"""Decode image files in parallel, and report the unreadable ones."""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
from joblib import Parallel, cpu_count, delayed
from PIL import Image

from condenset.data.folders.image_decoding import TargetShape, UnreadableImageError, read_image
from condenset.data.reading.file_scan import DatasetWarning
from condenset.data.reading.lazy import Pixels
from condenset.errors import UserError, format_names, has_option, option, warn_user

MAX_NAMED_FILES = 5  # in an error message, after the first
MAX_REASONS = 10  # why image files cannot be read, in the details of an error
MAX_GROUP = 64  # files that a worker reads at a time
MAX_WORKERS = 16


class UnreadableFilesWarning(DatasetWarning):
    """Image files are left out because they cannot be read."""


def warn_about_unreadable(unreadable: Mapping[str, str], max_names: int = MAX_NAMED_FILES, hint: str = "") -> None:
    """Warn about image files that are left out, if there are any.

    Args:
        unreadable: The files, with the reason.
        max_names: The number of files to name.
        hint: Where the others are named.
    """
    if unreadable:
        count = f"{len(unreadable)} unreadable image file{'s are' if len(unreadable) > 1 else ' is'} left out"
        message = f"{count}: {format_names(list(unreadable), max_names)}{hint}"
        warn_user(message, UnreadableFilesWarning)


def unreadable_error(unreadable: Mapping[str, str]) -> UserError:
    """Return the error for the unreadable image files of a report."""
    num = len(unreadable)
    problem = f"{num} image files are not readable" if num > 1 else "1 image file is not readable"
    them = "them" if num > 1 else "it"
    return UnreadableImageError(f"{problem}: repair {them}, or leave {them} out with {option('skip_bad', True)}")


def list_reasons(unreadable: Mapping[str, str]) -> str:
    """Return why the first unreadable files cannot be read, one line each."""
    return "\n".join([*unreadable.values()][:MAX_REASONS] + ["…"] * (len(unreadable) > MAX_REASONS))


def raise_first(errors: Mapping[str, UserError], *, all_failed: bool, details: str = "") -> None:
    """Raise the error of the first file, if there is one, name further files and how to leave them out.

    Errors of readable files, such as a wrong white level, come first: leaving out the files would hide them.

    Args:
        errors: The error of each file that failed.
        all_failed: No file is left, so that leaving out files does not help.
        details: Lines to print below the message.
    """
    if not errors:
        return
    first, *other_paths = sorted(errors, key=lambda path: isinstance(errors[path], UnreadableImageError))
    more = f" (and {len(other_paths)} more: {format_names(other_paths, MAX_NAMED_FILES)})" if other_paths else ""
    is_damaged = isinstance(errors[first], UnreadableImageError)
    hint = f"; leave out unreadable files with {option('skip_bad', True)} ('condenset data check' lists them all)"
    hint = hint if is_damaged and not all_failed and has_option("skip_bad") else ""
    raise type(errors[first])(f"{errors[first]}{more}{hint}", details=details)


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
        raise_first(errors, all_failed=len(errors) == len(paths))
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
