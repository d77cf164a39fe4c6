"""Image files: decode them in parallel, crop and resize them to one shape."""

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
from PIL import Image, ImageOps

from condenset.data.lazy import Pixels
from condenset.errors import UserError, check, format_error, format_names, is_int

# Pillow detects the format from the content, not the name. This list prevents a .jpg that contains PostScript from
# reaching an interpreter.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16L", "I;16B", "I;16N")
MAX_IMAGE_SIZE = 4096  # pixels
MAX_NAMED_FILES = 5  # in an error message, after the first
MAX_GROUP = 64  # files that a worker reads at a time
MAX_WORKERS = 16


def check_image_size(size: int | None) -> None:
    """Check an image size in pixels; None is valid and means the size of the images."""
    in_range = size is None or (is_int(size) and 1 <= size <= MAX_IMAGE_SIZE)
    check(in_range, f"size must be a whole number in 1..{MAX_IMAGE_SIZE}", size)


@dataclass(frozen=True)
class TargetShape:
    """The shape of all images: (channels, size, size). Without `resize`, images must already have this size."""

    channels: int
    size: int
    resize: bool

    def __post_init__(self) -> None:
        check_image_size(self.size)


def detect_target_shape(paths: Sequence[str], size: int | None) -> TargetShape:
    """Return the target shape of image files: one channel if all are grey; the first image's size if `size` is None."""
    modes, sizes, errors = set[str](), list[tuple[int, int]](), dict[str, UserError]()
    with filter_pillow_warnings():
        for path in paths:
            try:
                mode, image_size = _read_header(path)
            except UserError as error:
                errors[path] = error
            else:
                modes.add(mode)
                sizes.append(image_size)
    _raise_first(errors)
    width, height = sizes[0]
    if size is None and width != height:
        raise UserError(f"{paths[0]} is {width}x{height}, not square: give a size (--size) to resize images to")
    return TargetShape(1 if modes <= set(GREY_MODES) else 3, size or width, resize=size is not None)


def _read_header(path: str) -> tuple[str, tuple[int, int]]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.mode, image.size
    except Exception as error:
        raise _to_user_error(path, error) from None


def _to_user_error(path: str, error: Exception) -> UserError:
    return (
        error if isinstance(error, UserError) else UserError(f"{path} is not a readable image: {format_error(error)}")
    )


def _raise_first(errors: Mapping[str, UserError]) -> None:
    """Raise the error of the first file, if there is one, and name further files."""
    if not errors:
        return
    first, *other_paths = errors
    more = f" (and {len(other_paths)} more: {format_names(other_paths, MAX_NAMED_FILES)})" if other_paths else ""
    raise UserError(f"{errors[first]}{more}")


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
        _raise_first({path: error for errors in workers(tasks) for path, error in errors.items()})
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


def read_image(path: str, target: TargetShape) -> Pixels:
    """Return one image file as (C, S, S)."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if target.resize:
                # A JPEG can be decoded at a half, quarter or eighth of its size. This takes half the time and changes
                # pixels by less than half a grey level.
                image.draft(None, (2 * target.size, 2 * target.size))
            return fit_image(image, target, path)
    except Exception as error:  # the exceptions that Pillow raises for a broken file depend on the format
        raise _to_user_error(path, error) from None


def fit_image(image: Image.Image, target: TargetShape, name: str) -> Pixels:
    """Return an image as (C, S, S): its central square, resized with antialiasing, in the target's channels."""
    if not target.resize and image.size != (target.size, target.size):
        size, first_size = f"{image.width}x{image.height}", f"{target.size}x{target.size}"
        raise UserError(f"{name} is {size}, but the first image is {first_size}: give a size (--size) to resize all to")
    image = _to_eight_bits(image, name)
    if image.mode == "P" or "transparency" in image.info:
        image = image.convert("RGBA")  # converting a transparent palette directly gives wrong colours and a warning
    image = image.convert("L" if target.channels == 1 else "RGB")
    if target.resize:
        # Crop and resize in one step: resizing first would turn a 1x100000 image into a long strip.
        image = ImageOps.fit(image, (target.size, target.size), Image.Resampling.BICUBIC)
    pixels: Pixels = np.asarray(image)
    return pixels[None] if target.channels == 1 else pixels.transpose(2, 0, 1)


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise UserError(f"{name} must have pixels of 8 or 16 bits, but its mode is {image.mode!r}")
    return Image.fromarray(np.rint(values / 257).astype(np.uint8))
