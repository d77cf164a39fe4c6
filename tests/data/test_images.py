from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from data_files import Refused, make_classes, save_image
from PIL import Image

from condenset.data import from_folder, load
from condenset.data.images import EXTENSIONS, FORMATS, Frame, read_image


def test_folder_of_classes_is_one_split_in_sorted_order(tmp_path: Path) -> None:
    make_classes(tmp_path, "ba", count=3)
    save_image(tmp_path / "a" / "deeper" / "z.PNG", value=7)
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "._0.png").write_text("hidden")
    (tmp_path / ".hidden").mkdir()
    data = from_folder(tmp_path, can_flip=False)
    assert data.class_names == ("a", "b") and data.class_counts == (4, 3) and data.images.shape == (7, 3, 8, 8)
    with Image.open(tmp_path / "a" / "1.png") as image:
        assert (data.images[1].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert data.name == tmp_path.name and not data.can_flip
    values = data.images.numpy() / 255
    assert data.mean == pytest.approx(values.mean((0, 2, 3))) and data.std == pytest.approx(values.std((0, 2, 3)))


def test_class_names_are_text_whatever_bytes_their_folders_are_called_by(tmp_path: Path, refused: Refused) -> None:
    odd = os.fsdecode(b"b\xff")
    try:
        make_classes(tmp_path / "fine", ["a", odd], count=2)
    except OSError:
        pytest.skip("this disk holds names of text alone")
    assert from_folder(tmp_path / "fine").class_names == ("a", "b\\xff")
    (tmp_path / "fine").rename(tmp_path / odd)
    with refused("a path must be text in UTF-8"):
        load(tmp_path / odd)


@pytest.mark.parametrize("test_folder", ["test", "val", "validation"])
def test_folder_with_both_splits(tmp_path: Path, test_folder: str) -> None:
    make_classes(tmp_path / "train", "ab", count=3)
    make_classes(tmp_path / test_folder, "ab", count=2)
    splits = load(tmp_path)
    assert splits.train.class_counts == (3, 3) and splits.test.class_counts == (2, 2)
    assert splits.train.mean == splits.test.mean and test_folder in splits.train.source


def test_unlabelled_test_folder_gives_way_to_val(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", "ab")
    make_classes(tmp_path / "val", "ab", count=2)
    save_image(tmp_path / "test" / "0.png")
    assert load(tmp_path).test.class_counts == (2, 2)


@pytest.mark.parametrize("inside", ["", "train"])
def test_a_fifth_is_held_out_where_there_is_no_test(tmp_path: Path, inside: str) -> None:
    make_classes(tmp_path / inside, "ab", count=7)
    splits = load(tmp_path)
    assert splits.train.class_counts == (5, 5) and splits.test.class_counts == (2, 2)
    assert "every fifth" in splits.train.source and "every fifth" in splits.test.source
    whole = from_folder(tmp_path / inside)
    assert (splits.test.images == whole.images[[0, 5, 7, 12]]).all()
    assert (splits.train.images == whole.images[[1, 2, 3, 4, 6, 8, 9, 10, 11, 13]]).all()


@pytest.mark.parametrize("names", [("Train", "val"), ("testing", "training"), ("train", "val")])
def test_splits_are_not_taken_for_classes(tmp_path: Path, names: tuple[str, str], refused: Refused) -> None:
    for name in names:
        make_classes(tmp_path / name, "ab")
    with refused(f"holds splits, {names[0]}, {names[1]}, where classes are expected: call them train and test"):
        (from_folder if names == ("train", "val") else load)(tmp_path)


@pytest.mark.parametrize("name", ["wrapped", "val"])
def test_one_folder_around_all_classes_is_not_a_class(tmp_path: Path, name: str, refused: Refused) -> None:
    make_classes(tmp_path / name, "ab")
    for read in (from_folder, load):
        with refused(f"holds one folder of folders, '{name}': give {tmp_path / name} instead"):
            read(tmp_path)
    save_image(tmp_path / name / "0.png")
    assert from_folder(tmp_path).class_names == (name,)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("car", "plane", "train"):
        make_classes(tmp_path, [name], count=2)
    assert load(tmp_path).train.class_names == ("car", "plane", "train")


def test_classes_must_match(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path / "train", "ab")
    make_classes(tmp_path / "test", "abc")
    with refused("'c' is in test alone"):
        load(tmp_path)


def test_empty_things_are_refused(tmp_path: Path, refused: Refused) -> None:
    with refused("no such folder"):
        from_folder(tmp_path / "nowhere")
    with refused("a folder for each class"):
        from_folder(tmp_path)
    make_classes(tmp_path, "a")
    (tmp_path / "cat").mkdir()
    with refused("empty class: no image in 'cat'"):
        from_folder(tmp_path)
    save_image(tmp_path / "cat" / "0.png")
    with refused("class 'cat' has one image"):
        load(tmp_path)


def test_mixed_sizes_need_a_size(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path, "a")
    save_image(tmp_path / "b" / "1.jpg", (20, 10))
    with refused("1.jpg is 20x10 where the first image is 8x8: give a size (--size)"):
        from_folder(tmp_path)
    assert from_folder(tmp_path, size=6).images.shape == (6, 3, 6, 6)
    save_image(tmp_path / "a" / "0.jpg", (20, 10))
    with refused("0.jpg is 20x10, not square"):
        from_folder(tmp_path)


@pytest.mark.parametrize("size", [0, -1, 4097, 2.5, True])
def test_bad_size_is_refused(tmp_path: Path, refused: Refused, size: int) -> None:
    make_classes(tmp_path, "a")
    with refused("size must be"):
        from_folder(tmp_path, size=size)
    with refused("size must be"):
        load(tmp_path, size=size)


@pytest.mark.parametrize("extension", ["png", "jpg"])
def test_fitting_keeps_the_middle_square(tmp_path: Path, extension: str) -> None:
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, 50:100], pixels[:, 100:150], pixels[:, :50], pixels[:, 150:] = 80, 160, 255, 255
    path = tmp_path / f"x.{extension}"
    Image.fromarray(pixels).save(path)
    out = read_image(str(path), Frame(3, 10, fits=True)).astype(int)
    assert out.shape == (3, 10, 10)
    assert abs(out[:, :, 1:4] - 80).max() < 6 and abs(out[:, :, 6:9] - 160).max() < 6


def test_a_long_strip_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "strip.png"
    Image.new("L", (100_000, 1), 9).save(path)
    assert (read_image(str(path), Frame(1, 64, fits=True)) == 9).all()


def test_grey_stays_grey_only_if_all_is(tmp_path: Path) -> None:
    make_classes(tmp_path, "a", mode="L")
    save_image(tmp_path / "b" / "0.png", mode="1")
    save_image(tmp_path / "b" / "1.png", mode="LA")
    grey = from_folder(tmp_path)
    assert grey.channels == 1 and set(grey.images[5].unique().tolist()) == {0, 255}
    for number, mode in enumerate(("RGBA", "P", "CMYK")):
        save_image(tmp_path / "b" / f"c{number}.{'tif' if mode == 'CMYK' else 'png'}", mode=mode)
        mixed = from_folder(tmp_path)
        assert mixed.channels == 3
        assert (mixed.images[0] == mixed.images[0, :1]).all() and (mixed.images[0, 0] == grey.images[0, 0]).all()


def test_transparent_palette_is_read_without_a_warning(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(tmp_path / "x.png", transparency=bytes([0, 128]))
    assert read_image(str(tmp_path / "x.png"), Frame(3, 4, fits=False))[:, 0, 0].tolist() == [10, 20, 30]


def test_sixteen_bits_become_eight_and_floats_are_refused(tmp_path: Path, refused: Refused) -> None:
    values = np.array([[0, 257], [128 * 257, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "x.png")
    assert read_image(str(tmp_path / "x.png"), Frame(1, 2, fits=False))[0].tolist() == [[0, 1], [128, 255]]
    Image.fromarray(np.zeros((2, 2), np.float32)).save(tmp_path / "x.tif")
    with refused("8 or 16 bits"):
        read_image(str(tmp_path / "x.tif"), Frame(1, 2, fits=False))


def _encoded(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(file, kind)
    return file.getvalue()


JPEG = _encoded("JPEG")


# the last is whole, but of a format that has no place here, as PostScript has none
@pytest.mark.parametrize("content", [b"", b"text", JPEG[: len(JPEG) // 2], JPEG[:30], _encoded("PCX")])
def test_broken_image_is_named(tmp_path: Path, refused: Refused, content: bytes) -> None:
    make_classes(tmp_path, "a")
    (tmp_path / "a" / "9.jpg").write_bytes(content)
    with refused("9.jpg is not a readable image"):
        from_folder(tmp_path, size=8)


def test_a_name_cannot_speak_to_the_terminal(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path, "a")
    (tmp_path / "a" / "red\x1b[31m\nß.png").write_bytes(b"text")
    with refused(r"red\x1b[31m ß.png is not a readable image"):
        from_folder(tmp_path, size=8)


@pytest.mark.parametrize("content", [b"text", JPEG[: len(JPEG) // 2]], ids=["no header", "cut short"])
def test_all_broken_images_are_told_of_at_once(tmp_path: Path, refused: Refused, content: bytes) -> None:
    make_classes(tmp_path, "ab", count=5)
    (tmp_path / "a" / "2.png").write_bytes(content)
    (tmp_path / "b" / "4.png").write_bytes(content)
    with refused(f"a{os.sep}2.png is not a readable image", f" (and 1 more: '{tmp_path / 'b' / '4.png'}')"):
        from_folder(tmp_path, size=8)
    for path in tmp_path.glob("*/*.png"):
        path.write_bytes(content)
    with refused(f"a{os.sep}0.png is not", f"(and 9 more: '{tmp_path / 'a' / '1.png'}', ", f"b{os.sep}0.png', …)"):
        from_folder(tmp_path, size=8)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("pixels", [50, 25])  # twice Pillow's limit is its error, once is its warning
def test_decompression_bomb_is_refused(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch, pixels: int
) -> None:
    make_classes(tmp_path, "a")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pixels)
    with refused("decompression bomb"):
        from_folder(tmp_path)


def test_pipes_and_dangling_links_are_refused(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path, "a")
    os.symlink(tmp_path / "a" / "0.png", tmp_path / "a" / "link.png")
    assert len(from_folder(tmp_path)) == 6
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with refused("pipe.png is not a regular file"):
        from_folder(tmp_path)
    os.unlink(tmp_path / "a" / "pipe.png")
    os.symlink(tmp_path / "gone.png", tmp_path / "a" / "lost.png")
    with refused("lost.png is not a regular file"):
        from_folder(tmp_path)


def test_more_images_than_one_block_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path, "ab", count=70)
    whole = from_folder(tmp_path)
    monkeypatch.setattr("condenset.data.raw.BLOCK_BYTES", 9 * 3 * 8 * 8)
    pieces = from_folder(tmp_path)
    assert (whole.images == pieces.images).all() and whole.mean == pieces.mean


def test_many_files_are_read_by_processes_as_by_threads(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classes(tmp_path, "ab", count=70)
    by_threads = from_folder(tmp_path)
    monkeypatch.setattr("condenset.data.images.APART_FROM", 1)
    monkeypatch.setattr("condenset.data.images.cpu_count", lambda: 3)
    assert (from_folder(tmp_path).images == by_threads.images).all()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:  # nowhere to put what processes share: then threads it is
        patch.setattr(os, "posix_fallocate", full, raising=False)
        assert (from_folder(tmp_path).images == by_threads.images).all()
    (tmp_path / "a" / "69.png").write_bytes(JPEG[: len(JPEG) // 2])  # its header is whole
    (tmp_path / "b" / "5.png").write_bytes(JPEG[: len(JPEG) // 2])
    # in order, whoever comes to it first
    with refused(f"a{os.sep}69.png is not a readable image", f"(and 1 more: '{tmp_path / 'b' / '5.png'}')"):
        from_folder(tmp_path, size=8)


def make_tiny(root: Path) -> None:
    wnids = ("n02", "n01", "n03")
    (root / "val" / "images").mkdir(parents=True)
    (root / "wnids.txt").write_text("\n".join(wnids))
    (root / "words.txt").write_text("n01\tcrane, bird\nn02\tgoldfish, Carassius auratus\nn03\tcrane\nn04\tother\n")
    lines = []
    for number, wnid in enumerate(wnids):
        for i in range(3):
            mode = "L" if i == 2 else "RGB"
            save_image(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (64, 64), mode, 10 * number + i)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("x")
        save_image(root / "val" / "images" / f"val_{number}.JPEG", (64, 64), value=50 + number)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t9\t9")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")


def test_tinyimagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    make_tiny(root)
    splits = load("TinyImageNet", data_dir=tmp_path)
    assert splits.train.class_names == ("n01", "goldfish", "n03")  # two cranes: their ids tell them apart
    assert splits.train.images.shape == (9, 3, 64, 64) and splits.test.labels.tolist() == [0, 1, 2]
    with Image.open(root / "val" / "images" / "val_1.JPEG") as image:
        assert (splits.test.images[0].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert splits.train.mean == (0.485, 0.456, 0.406)
    assert load("tinyimagenet", data_dir=tmp_path, size=16).train.size == 16
    assert load(root).train.class_names == splits.train.class_names


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("val_0.JPEG\tn99\t0", "line 4: 'n99' is not one of the 3 classes"),
        ("../../x.JPEG\tn01\t0", "is not a file name"),
        ("..\\x.JPEG\tn01\t0", "is not a file name"),
        ("val_0.JPEG", "line 4: ''"),
        ("gone.JPEG\tn01", "gone.JPEG is not a readable image"),
    ],
)
def test_bad_annotations_are_refused(tmp_path: Path, refused: Refused, line: str, part: str) -> None:
    make_tiny(tmp_path)
    with (tmp_path / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")
    with refused(part):
        load(tmp_path)


def test_imagenet_is_fitted_to_64(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for wnid in ("n01", "n02"):
            save_image(tmp_path / "imagenet" / split / wnid / "x.JPEG", (90, 70))
            save_image(tmp_path / "imagenet" / split / wnid / "y.JPEG", (30, 80), "CMYK")
    splits = load("imagenet", data_dir=tmp_path)
    assert splits.train.images.shape == (4, 3, 64, 64) and splits.test.class_names == ("n01", "n02")
    assert load("imagenet", data_dir=tmp_path, size=32).test.size == 32


def test_pillow_knows_every_format() -> None:
    Image.init()
    assert set(FORMATS) <= set(Image.OPEN)
    assert {Image.EXTENSION[extension] for extension in EXTENSIONS} <= set(FORMATS)
