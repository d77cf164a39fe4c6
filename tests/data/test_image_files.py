from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from condenset.data import from_folder
from condenset.data.image_files import TargetShape, read_image
from helpers.data_files import ExpectUserError, make_classes


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_resizing_crops_to_the_central_square(tmp_path: Path, extension: str) -> None:
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 50:100], pixels[:, 100:150], pixels[:, :50], pixels[:, 150:] = 80, 160, 255, 255
    path = tmp_path / f"x.{extension}"
    Image.fromarray(pixels).save(path)
    out = read_image(str(path), TargetShape(3, 10, resize=True)).astype(int)
    assert out.shape == (3, 10, 10)
    assert abs(out[:, :, 1:4] - 80).max() < 6 and abs(out[:, :, 6:9] - 160).max() < 6


def test_long_strip_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "strip.png"
    Image.new("L", (100_000, 1), 9).save(path)
    assert (read_image(str(path), TargetShape(1, 64, resize=True)) == 9).all()


def test_transparent_palette_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "x.png", transparency=bytes([0, 128]))
    assert read_image(str(tmp_path / "x.png"), TargetShape(3, 4, resize=False))[:, 0, 0].tolist() == [10, 20, 30]


def test_sixteen_bits_become_eight_and_floats_are_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    values = np.array([[0, 257], [128 * 257, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "x.png")
    assert read_image(str(tmp_path / "x.png"), TargetShape(1, 2, resize=False))[0].tolist() == [[0, 1], [128, 255]]
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "x.tif")
    with user_error("8 or 16 bits"):
        read_image(str(tmp_path / "x.tif"), TargetShape(1, 2, resize=False))


def encode_image(image_format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, image_format)
    return file.getvalue()


JPEG = encode_image("JPEG")


# The last one is complete, but its format is not allowed.
@pytest.mark.parametrize("content", [b"", b"text", JPEG[: len(JPEG) // 2], JPEG[:30], encode_image("PCX")])
def test_error_names_the_broken_image(tmp_path: Path, user_error: ExpectUserError, content: bytes) -> None:
    make_classes(tmp_path, "a")
    (tmp_path / "a" / "9.jpg").write_bytes(content)
    with user_error("9.jpg is not a readable image"):
        from_folder(tmp_path, size=8)


def test_control_characters_in_names_are_escaped(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "a")
    (tmp_path / "a" / "red\x1b[31m\nß.png").write_bytes(b"text")
    with user_error(r"red\x1b[31m ß.png is not a readable image"):
        from_folder(tmp_path, size=8)


@pytest.mark.parametrize("content", [b"text", JPEG[: len(JPEG) // 2]], ids=["no header", "truncated"])
def test_error_names_all_broken_images(tmp_path: Path, user_error: ExpectUserError, content: bytes) -> None:
    make_classes(tmp_path, "ab", count=5)
    (tmp_path / "a" / "2.png").write_bytes(content)
    (tmp_path / "b" / "4.png").write_bytes(content)
    with user_error(f"a{os.sep}2.png is not a readable image", f" (and 1 more: '{tmp_path / 'b' / '4.png'}')"):
        from_folder(tmp_path, size=8)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(content)
    with user_error(f"a{os.sep}0.png is not", f"(and 9 more: '{tmp_path / 'a' / '1.png'}', ", f"b{os.sep}0.png', …)"):
        from_folder(tmp_path, size=8)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("pixels", [50, 25])  # Pillow warns above its limit and fails above twice the limit
def test_decompression_bomb_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    make_classes(tmp_path, "a")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with user_error("decompression bomb"):
        from_folder(tmp_path)


def test_processes_and_threads_give_the_same_pixels(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classes(tmp_path, "ab", count=70)
    by_threads = from_folder(tmp_path)
    monkeypatch.setattr("condenset.data.folders.MIN_FILES_FOR_PROCESSES", 1)
    monkeypatch.setattr("condenset.data.folders.cpu_count", lambda: 3)
    assert (from_folder(tmp_path).images == by_threads.images).all()

    def raise_disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # without space for the shared file, threads are used
        patch.setattr(os, "posix_fallocate", raise_disk_full, raising=False)
        assert (from_folder(tmp_path).images == by_threads.images).all()
    (tmp_path / "a" / "69.png").write_bytes(JPEG[: len(JPEG) // 2])  # its header is complete
    (tmp_path / "b" / "5.png").write_bytes(JPEG[: len(JPEG) // 2])
    with user_error(f"a{os.sep}69.png is not a readable image", f"(and 1 more: '{tmp_path / 'b' / '5.png'}')"):
        from_folder(tmp_path, size=8)
