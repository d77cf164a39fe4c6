"""One image: orientation, transparency, 16 bits, crop or padding, and size. The result is uint8 (C, S, S)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, ImageColor, ImageOps, UnidentifiedImageError

from condenset.data.reading.lazy import Pixels
from condenset.data.reading.options import WHITE_LEVEL, LoadOptions, check_image_size
from condenset.errors import UserError, format_error, option
from condenset.io.files import open_file

# Pillow detects the format from the content, not the name. This list prevents a .jpg that contains PostScript from
# reaching an interpreter.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GIT_LFS_POINTER = b"version https://git-lfs"  # the beginning of a text file in place of the image
MAX_IMAGE_BYTES = 1 << 30  # of a file; Pillow limits the pixels to 89 million
GREY_MODES = ("1", "L", "LA", "I", "I;16", "I;16L", "I;16B", "I;16N")
ALPHA_MODES = ("LA", "PA", "RGBA", "RGBa")


class UnreadableImageError(UserError):
    """A file is not an image, or a damaged one. `skip_bad` leaves such files out."""


@dataclass(frozen=True)
class TargetShape:
    """The shape of all images, (channels, size, size), and how images are converted to it.

    Attributes:
        channels: 1 or 3.
        size: The image size in pixels.
        resize: Resize images. Otherwise they must have this size, after `fit` if it is given.
        fit, background, white_level: As in `LoadOptions`.
        use_exif: Rotate and flip images as their EXIF orientation says.
    """

    channels: int
    size: int
    resize: bool
    fit: str | None = None
    background: str = "white"
    white_level: int = WHITE_LEVEL
    use_exif: bool = True

    def __post_init__(self) -> None:
        check_image_size(self.size)


def make_target_shape(name: str, size: tuple[int, int], *, is_grey: bool, options: LoadOptions) -> TargetShape:
    """Return the target shape of a dataset. Without `options.size` it is that of the first image.

    Args:
        name: The first image, for the error message.
        size: Its width and height.
        is_grey: Whether all images are grey. The result has one channel if the background is grey too.
        options: How to read the dataset.
    """
    width, height = size
    if options.size is None and options.fit is None and width != height:
        hint = f"give {option('size')}, {option('fit', 'crop')} or {option('fit', 'pad')}"
        raise UserError(f"{name} is {width}x{height}, not square: {hint}")
    red, green, blue = ImageColor.getrgb(options.background)[:3]
    return TargetShape(
        1 if is_grey and red == green == blue else 3,
        options.size or _square_side(size, options.fit),
        resize=options.size is not None,
        fit=options.fit,
        background=options.background,
        white_level=options.white_level,
    )


def check_source_size(name: str, size: tuple[int, int], target: TargetShape) -> None:
    """Check that an image of this width and height has the target size, if images are not resized."""
    is_square = size[0] == size[1] or target.fit is not None
    if not target.resize and not (is_square and _square_side(size, target.fit) == target.size):
        width, height = size
        note = f" with {option('fit', target.fit)}" if target.fit else ""
        first = f"the first image is {target.size}x{target.size}{note}"
        raise UserError(f"{name} is {width}x{height}, but {first}: resize all images with {option('size')}")


def _square_side(size: tuple[int, int], fit: str | None) -> int:
    return max(size) if fit == "pad" else min(size)


def read_image(path: str, target: TargetShape) -> Pixels:
    """Return one image file as (C, S, S)."""
    try:
        with open_image(path) as image:
            if target.resize:
                # A JPEG can be decoded at a half, quarter or eighth of its size. This takes half the time and changes
                # pixels by less than half a grey level.
                image.draft(None, (2 * target.size, 2 * target.size))
            return fit_image(image, target, path)
    except Exception as error:  # the exceptions that Pillow raises for a broken file depend on the format
        raise to_user_error(path, error) from None


@contextmanager
def open_image(path: str) -> Iterator[Image.Image]:
    """Open an image file without decoding it."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_file(path, MAX_IMAGE_BYTES))
        except UserError as error:
            raise UnreadableImageError(str(error)) from None
        try:
            image = Image.open(file, formats=FORMATS)
        except UnidentifiedImageError:
            file.seek(0)
            if file.read(len(GIT_LFS_POINTER)) == GIT_LFS_POINTER:
                raise UserError(f"{path} is a Git LFS pointer, not an image: run 'git lfs pull'") from None
            raise
        yield stack.enter_context(image)


def to_user_error(name: str, error: Exception) -> UserError:
    """Return the error for an image that cannot be decoded."""
    if isinstance(error, UserError):
        return error
    # The message of Pillow contains the representation of the open file.
    is_unknown = isinstance(error, UnidentifiedImageError)
    reason = f"its content is none of {', '.join(FORMATS)}" if is_unknown else format_error(error)
    return UnreadableImageError(f"{name} is not a readable image: {reason}")


def fit_image(image: Image.Image, target: TargetShape, name: str) -> Pixels:
    """Return an image as (C, S, S): oriented, on the background, square, resized with antialiasing."""
    if target.white_level != WHITE_LEVEL and _is_16_bit_colour(image):
        rule = "a white level needs grey images of 16 bits"
        raise UserError(f"{rule}, but {name} has 16 bits per colour; convert it to 8 bits")
    image.load()
    if target.use_exif:
        image = image.copy()  # the image may belong to the caller
        with suppress(Exception):  # damaged metadata do not make the pixels unreadable
            ImageOps.exif_transpose(image, in_place=True)
    check_source_size(name, image.size, target)
    image = _flatten(_to_eight_bits(image, target.white_level, name), target.background)
    image = _make_square(image.convert("L" if target.channels == 1 else "RGB"), target)
    pixels: Pixels = np.asarray(image)
    return pixels[None] if target.channels == 1 else pixels.transpose(2, 0, 1)


def oriented_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of an opened image file after its EXIF orientation is applied."""
    width, height = image.size
    # Pillow has applied the orientation of a TIFF, and would decode a PNG to search for EXIF data after the pixels.
    if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
        return width, height
    orientation = 1
    with suppress(Exception):
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return (height, width) if orientation in (5, 6, 7, 8) else (width, height)


def _to_eight_bits(image: Image.Image, white_level: int, name: str) -> Image.Image:
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > WHITE_LEVEL:
        raise UnreadableImageError(f"{name} must have pixels of 8 or 16 bits, but its mode is {image.mode!r}")
    if values.max() > white_level:
        rule = f"pixels must be at most the white level {white_level}"  # no option(): workers do not know the interface
        raise UserError(f"{rule}, but {name} has {values.max()}; give a higher white level")
    return Image.fromarray(np.rint(values * 255.0 / white_level).astype(np.uint8))


def is_16_bit(image: Image.Image) -> bool:
    """Return whether an opened image file has 16 bits per channel."""
    return image.mode.startswith("I") or _is_16_bit_colour(image)


def _is_16_bit_colour(image: Image.Image) -> bool:
    """Return whether this is an image file of which Pillow reads only the upper 8 of 16 bits."""
    tiles = getattr(image, "tile", None)
    arguments = tiles[0][3] if tiles else None
    raw_mode = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return not image.mode.startswith("I") and isinstance(raw_mode, str) and ";16" in raw_mode


def read_maximum(path: str) -> int:
    """Return the largest pixel value of a file with 16 bits per channel."""
    with open_image(path) as image:
        factor = 257 if _is_16_bit_colour(image) else 1
        return int(np.asarray(image).max()) * factor


def _flatten(image: Image.Image, background: str) -> Image.Image:
    """Put a transparent image on the background."""
    if image.mode != "P" and image.mode not in ALPHA_MODES and "transparency" not in image.info:
        return image
    image = image.convert("RGBA")  # converting a transparent palette directly gives wrong colours and a warning
    opaque = Image.new("RGBA", image.size, (*ImageColor.getrgb(background)[:3], 255))
    return Image.alpha_composite(opaque, image)


def _make_square(image: Image.Image, target: TargetShape) -> Image.Image:
    size, (width, height) = target.size, image.size
    if target.fit == "pad":
        scale = size / max(width, height)
        width, height = (max(1, round(side * scale)) for side in (width, height))
        square = Image.new(image.mode, (size, size), ImageColor.getcolor(target.background, image.mode))
        square.paste(image.resize((width, height)), ((size - width) // 2, (size - height) // 2))
        return square
    if target.resize:
        # Crop and resize in one step: resizing first would turn a 1x100000 image into a long strip.
        return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return image.crop((left, top, left + size, top + size))
