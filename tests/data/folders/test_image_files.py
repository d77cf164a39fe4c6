from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from condenset.data import from_folder
from condenset.data.folders.file_scanning import scan_files
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError
from helpers.data_files import ExpectUserError, make_classes, save_image


def encode_image(image_format: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, image_format)
    return file.getvalue()


JPEG = encode_image("JPEG")


# The last one is complete, but its format is not allowed.
@pytest.mark.parametrize("content", [b"", b"text", JPEG[: len(JPEG) // 2], JPEG[:30], encode_image("PCX")])
def test_error_names_the_broken_image(tmp_path: Path, user_error: ExpectUserError, content: bytes) -> None:
    make_classes(tmp_path, "ab")
    (tmp_path / "a" / "9.jpg").write_bytes(content)
    with user_error("9.jpg is not a readable image: ", "leave out unreadable files with skip_bad=True"):
        from_folder(tmp_path, size=8)
    with pytest.raises(UserError) as caught:
        from_folder(tmp_path, size=8)
    assert str(caught.value).count(str(tmp_path)) == 1 and "<" not in str(caught.value)


def test_control_characters_in_names_are_escaped(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "ab")
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


def test_one_error_has_all_problems_of_a_folder(tmp_path: Path) -> None:
    make_classes(tmp_path, "ab", count=3)
    (tmp_path / "a" / "1.png").write_bytes(b"text")
    save_image(tmp_path / "a" / "2.png", (20, 10))
    (tmp_path / "b" / "1.png").write_bytes(b"text")
    more = f" (and 1 more: '{tmp_path / 'b' / '1.png'}')"
    with pytest.raises(UserError, match=re.escape(more)) as caught:
        from_folder(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'a' / '1.png'} is not a readable image: ")
    size_line = f"{tmp_path / 'a' / '2.png'} is 20x10, but the first image is 8x8: resize all images with size="
    assert caught.value.details.splitlines() == [size_line, "sizes: 8x8 (3), 20x10 (1)"]
    with pytest.raises(UserError, match=re.escape(more)) as caught:
        from_folder(tmp_path, size=8)
    assert caught.value.details == ""


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("pixels", [50, 25])  # Pillow warns above its limit and fails above twice the limit
def test_decompression_bomb_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    make_classes(tmp_path, "ab")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with user_error("decompression bomb"):
        from_folder(tmp_path)


def test_processes_and_threads_give_the_same_pixels(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classes(tmp_path, "ab", count=70)
    by_threads = from_folder(tmp_path)
    monkeypatch.setattr("condenset.data.folders.reading.MIN_FILES_FOR_PROCESSES", 1)
    monkeypatch.setattr("condenset.data.folders.reading.cpu_count", lambda: 3)
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


def test_unreadable_files_are_left_out_on_request(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "ab", count=3)
    whole = from_folder(tmp_path)
    (tmp_path / "a" / "0.png").write_bytes(b"text")
    (tmp_path / "b" / "1.png").write_bytes(JPEG[: len(JPEG) // 2])  # its header is complete
    os.symlink(tmp_path / "gone.png", tmp_path / "b" / "lost.png")
    os.mkfifo(tmp_path / "b" / "pipe.png")
    with user_error(f"a{os.sep}0.png is not a readable image"):
        from_folder(tmp_path)
    with pytest.warns(UserWarning, match="4 unreadable image files are left out: .*0.png', .*1.png', .*lost.png'"):
        data = from_folder(tmp_path, skip_bad=True, size=8)
    assert data.class_counts == (2, 2) and (data.images == whole.images[[1, 2, 3, 5]]).all()
    for name in ("1.png", "2.png"):
        (tmp_path / "a" / name).write_bytes(b"text")
    with pytest.warns(UserWarning, match="left out"), user_error("class 'a' must have a readable image, but has none"):
        from_folder(tmp_path, skip_bad=True, size=8)


def test_leaving_out_every_file_is_no_advice(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_text("no image")
    for skip_bad in (False, True):
        with pytest.raises(UserError, match=r"0.jpg is not a readable image") as caught:
            from_folder(tmp_path, skip_bad=skip_bad)
        assert "skip_bad" not in str(caught.value)


def test_git_lfs_pointers_are_recognised(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "0.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "0.png").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(UserError, match=r"b/0.png is a Git LFS pointer, not an image: run 'git lfs pull'$"):
        from_folder(tmp_path)


def test_skip_bad_does_not_hide_wrong_options(tmp_path: Path, user_error: ExpectUserError) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((4, 4), 4000, np.uint16)).save(tmp_path / name / "0.png")
    with user_error("pixels must be at most the white level 3000, but", "has 4000; give a higher white level"):
        from_folder(tmp_path, skip_bad=True, white_level=3000)


def test_low_range_of_16_bits_is_reported_once(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((4, 4), 1000 * number + 200, np.uint16)).save(path)
    message = r"16-bit files have values up to 2200 only, but 65535 is white; give white_level=4095 unless"
    with pytest.warns(UserWarning, match=message) as warned:
        scan_files(paths, LoadOptions())
    assert len(warned) == 1
    scan_files(paths, LoadOptions(white_level=4095))
    Image.fromarray(np.full((4, 4), 20_000, np.uint16)).save(paths[1])
    target, scan = scan_files(paths, LoadOptions())
    assert scan.modes.total() == 3 and scan.sizes == {(4, 4): 3} and target.channels == 1


def test_images_without_a_common_size_need_one(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "ab", count=2, size=(12, 8))
    with user_error("0.png is 12x8, not square: give size=, fit='crop' or fit='pad'"):
        from_folder(tmp_path)
    assert from_folder(tmp_path, fit="crop").size == 8 and from_folder(tmp_path, fit="pad").size == 12
    save_image(tmp_path / "b" / "3.png", (20, 10))
    with user_error("3.png is 20x10, but the first image is 8x8 with fit='crop': resize all images with size="):
        from_folder(tmp_path, fit="crop")
    with pytest.raises(UserError) as caught:
        from_folder(tmp_path)
    assert caught.value.details == "sizes: 12x8 (4), 20x10 (1)"
    assert from_folder(tmp_path, size=6, fit="pad").images.shape == (5, 3, 6, 6)
