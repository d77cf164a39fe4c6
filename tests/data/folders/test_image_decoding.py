from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from condenset.data.folders.image_decoding import TargetShape, fit_image, read_image
from helpers.data_files import ExpectUserError

RANDOM = np.random.default_rng(0)
PIXELS = RANDOM.integers(0, 256, (8, 8, 3), np.uint8)


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_resizing_crops_to_the_central_square(tmp_path: Path, extension: str) -> None:
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 50:100], pixels[:, 100:150], pixels[:, :50], pixels[:, 150:] = 80, 160, 255, 255
    path = tmp_path / f"x.{extension}"
    Image.fromarray(pixels).save(path)
    out = read_image(str(path), TargetShape(3, 10, resize=True)).astype(int)
    assert out.shape == (3, 10, 10)
    assert abs(out[:, :, 1:4] - 80).max() < 6 and abs(out[:, :, 6:9] - 160).max() < 6


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_padding_keeps_the_whole_image_in_the_middle(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"x.{extension}"
    Image.new("RGB", (200, 100), (255, 0, 0)).save(path, quality=100)
    out = read_image(str(path), TargetShape(3, 10, resize=True, fit="pad", background="blue")).astype(int)
    assert (out[:, [0, 1, 8, 9]] == np.array([0, 0, 255])[:, None, None]).all()
    assert abs(out[:, 3:7] - np.array([255, 0, 0])[:, None, None]).max() < 6


@pytest.mark.parametrize("fit", [None, "pad"])
def test_long_strip_needs_little_memory(tmp_path: Path, fit: str | None) -> None:
    path = tmp_path / "strip.png"
    Image.new("L", (100_000, 1), 9).save(path)
    out = read_image(str(path), TargetShape(1, 64, resize=True, fit=fit))
    assert (out == 9).all() if fit is None else (out == 9).sum() == 64 and (out == 255).sum() == 63 * 64


def test_without_a_size_the_pixels_do_not_change() -> None:
    wide = Image.fromarray(RANDOM.integers(0, 256, (4, 7), np.uint8))
    cropped = fit_image(wide, TargetShape(1, 4, resize=False, fit="crop"), "x")
    assert (cropped[0] == np.asarray(wide)[:, 1:5]).all()
    padded = fit_image(wide, TargetShape(1, 7, resize=False, fit="pad", background="black"), "x")
    assert (padded[0, 1:5] == np.asarray(wide)).all() and (padded[0, [0, 5, 6]] == 0).all()


@pytest.mark.parametrize("extension", ["png", "jpg", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, extension: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = str(tmp_path / f"x.{extension}")
    Image.fromarray(PIXELS).save(path, exif=exif, **({"lossless": True} if extension == "webp" else {}))
    with Image.open(path) as image:
        expected, stored = np.asarray(ImageOps.exif_transpose(image)), np.asarray(image)
    target = TargetShape(3, 8, resize=False)
    assert (read_image(path, target).transpose(1, 2, 0) == expected).all()
    without = TargetShape(3, 8, resize=False, use_exif=False)
    assert (read_image(path, without).transpose(1, 2, 0) == stored).all()
    assert orientation == 1 or extension == "tif" or (stored != expected).any()  # Pillow itself rotates TIFF files


def test_damaged_metadata_do_not_make_an_image_unreadable() -> None:
    image = Image.fromarray(PIXELS)
    image.info["exif"] = b"Exif\0\0MM\0*\0\0\0"
    assert (fit_image(image, TargetShape(3, 8, resize=False), "x").transpose(1, 2, 0) == PIXELS).all()


def save_transparent(path: Path, mode: str) -> None:
    """Save an image of red or grey pixels: 2x2, of which only the last is opaque."""
    if mode == "P":
        image = Image.fromarray(np.array([[0, 0], [0, 1]], np.uint8)).convert("P")
        image.putpalette([255, 0, 0, 255, 0, 0])
        image.save(path, transparency=bytes([0, 255]))
        return
    image = Image.new("RGBA", (2, 2), (255, 0, 0, 0))
    image.putpixel((1, 1), (255, 0, 0, 255))
    image.convert(mode).save(path)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_show_the_background(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.png"
    save_transparent(path, mode)
    opaque = [76] * 3 if mode == "LA" else [255, 0, 0]
    white = read_image(str(path), TargetShape(3, 2, resize=False)).transpose(1, 2, 0)
    assert white.tolist() == [[[255] * 3, [255] * 3], [[255] * 3, opaque]]
    green = read_image(str(path), TargetShape(3, 2, resize=False, background="#00ff00")).transpose(1, 2, 0)
    assert green.tolist() == [[[0, 255, 0]] * 2, [[0, 255, 0], opaque]]


def test_transparent_colour_of_a_grey_file_shows_the_background(tmp_path: Path) -> None:
    Image.fromarray(np.array([[5, 9], [9, 9]], np.uint8)).save(tmp_path / "x.png", transparency=5)
    out = read_image(str(tmp_path / "x.png"), TargetShape(1, 2, resize=False))
    assert out.tolist() == [[[255, 9], [9, 9]]]


def test_half_transparent_palette_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "x.png", transparency=bytes([0, 128]))
    black = TargetShape(3, 4, resize=False, background="black")
    assert read_image(str(tmp_path / "x.png"), black)[:, 0, 0].tolist() == [5, 10, 15]


def test_sixteen_bits_become_eight_and_floats_are_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = str(tmp_path / "x.png")
    Image.fromarray(np.array([[0, 257], [128 * 257, 65535]], np.uint16)).save(path)
    assert read_image(path, TargetShape(1, 2, resize=False))[0].tolist() == [[0, 1], [128, 255]]
    Image.fromarray(np.array([[0, 16], [2048, 4095]], np.uint16)).save(path)
    assert read_image(path, TargetShape(1, 2, resize=False, white_level=4095))[0].tolist() == [[0, 1], [128, 255]]
    with user_error("pixels must be at most the white level 1023, but", "x.png has 4095; give a higher white level"):
        read_image(path, TargetShape(1, 2, resize=False, white_level=1023))
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "x.tif")
    with user_error("8 or 16 bits"):
        read_image(str(tmp_path / "x.tif"), TargetShape(1, 2, resize=False))


def test_white_level_cannot_scale_colours_of_16_bits(user_error: ExpectUserError) -> None:
    image: Any = Image.new("RGB", (2, 2))
    image.tile = [("zip", (0, 0, 2, 2), 0, "RGB;16B")]
    with user_error("a white level needs grey images of 16 bits, but x has 16 bits per colour; convert it to 8 bits"):
        fit_image(image, TargetShape(3, 2, resize=False, white_level=4095), "x")
