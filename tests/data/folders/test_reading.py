from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from condenset.data import check_dataset, from_folder, import_dataset, load
from condenset.data.folders.image_decoding import FORMATS
from condenset.data.folders.layouts import EXTENSIONS
from helpers.data_files import ExpectUserError, make_classes, save_image


def test_folder_of_classes_is_one_split_in_sorted_order(tmp_path: Path) -> None:
    make_classes(tmp_path, "ba", count=3)
    save_image(tmp_path / "a" / "deeper" / "z.PNG", value=7)
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "a" / "._0.png").write_text("hidden")
    (tmp_path / ".hidden").mkdir()
    data = from_folder(tmp_path, allow_hflip=False)
    assert data.class_names == ("a", "b") and data.class_counts == (4, 3) and data.images.shape == (7, 3, 8, 8)
    with Image.open(tmp_path / "a" / "1.png") as image:
        assert (data.images[1].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert data.name == tmp_path.name and not data.allow_hflip
    values = data.images.numpy() / 255
    assert data.mean == pytest.approx(values.mean((0, 2, 3))) and data.std == pytest.approx(values.std((0, 2, 3)))


def test_class_names_are_text_for_folder_names_of_any_bytes(tmp_path: Path, user_error: ExpectUserError) -> None:
    odd = os.fsdecode(b"b\xff")
    try:
        make_classes(tmp_path / "fine", ["a", odd], count=2)
    except OSError:
        pytest.skip("this file system accepts only UTF-8 names")
    assert from_folder(tmp_path / "fine").class_names == ("a", "b\\xff")
    (tmp_path / "fine").rename(tmp_path / odd)
    with user_error("a path must be text in UTF-8"):
        load(tmp_path / odd)


@pytest.mark.parametrize(
    ("train_folder", "test_folder"),
    [("train", "test"), ("Training", "Test"), ("TRAIN", "testing"), ("train", "val"), ("train", "Validation")],
)
def test_folder_with_both_splits(tmp_path: Path, train_folder: str, test_folder: str) -> None:
    make_classes(tmp_path / train_folder, "ab", count=3)
    make_classes(tmp_path / test_folder, "ab", count=2)
    (tmp_path / "docs").mkdir()
    splits = load(tmp_path)
    assert splits.train.class_counts == (3, 3) and splits.test.class_counts == (2, 2)
    assert splits.train.mean == splits.test.mean and test_folder in splits.train.source


def test_test_is_preferred_to_val(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("val", 2), ("Test", 1)):
        make_classes(tmp_path / name, "ab", count=count)
    assert load(tmp_path).test.class_counts == (1, 1)


def test_val_is_used_if_test_has_no_labels(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", "ab")
    make_classes(tmp_path / "val", "ab", count=2)
    save_image(tmp_path / "test" / "0.png")
    with pytest.warns(UserWarning, match="'test' has no class folders and is not used"):
        assert load(tmp_path).test.class_counts == (2, 2)


def test_a_test_folder_of_loose_images_is_not_used(tmp_path: Path) -> None:
    make_classes(tmp_path / "training", "ab", count=3)
    save_image(tmp_path / "test" / "0.png")
    with pytest.warns(UserWarning, match="'test' has no class folders and is not used"):
        assert load(tmp_path).test is None


def test_a_test_folder_among_classes_is_read_as_a_class(tmp_path: Path) -> None:
    for name in ("bus", "car", "test"):
        make_classes(tmp_path, [name], count=2)
    with pytest.warns(UserWarning, match="the folder 'test' is read as a class"):
        assert load(tmp_path).train.class_names == ("bus", "car", "test")


def test_folders_of_archivers_and_hidden_folders_are_ignored(tmp_path: Path, user_error: ExpectUserError) -> None:
    for name in ("__MACOSX", "__pycache__", ".cache", "a/__MACOSX", "a/.thumbnails"):
        save_image(tmp_path / "photos" / name / "0.png")
    make_classes(tmp_path / "photos", "ab", count=2)
    assert load(tmp_path / "photos").train.class_counts == (2, 2)
    assert load(tmp_path / "photos", nested=True).train.class_names == ("a", "b")
    ignored = {".cache", "__MACOSX", "__pycache__", "a/.thumbnails", "a/__MACOSX"}
    assert set(check_dataset(tmp_path / "photos", verbose=False).ignored_folders) == ignored
    save_image(tmp_path / "__MACOSX" / "0.png")
    with user_error(f"use {tmp_path / 'photos'} instead"):
        load(tmp_path)


def test_jfif_is_jpeg_and_other_formats_are_left_out(tmp_path: Path) -> None:
    make_classes(tmp_path, "ab", count=2)
    save_image(tmp_path / "a" / "2.jfif", format="JPEG")
    for name in ("3.heic", "4.HEIC", "5.avif"):
        (tmp_path / "b" / name).write_bytes(b"")
    for nested in (False, True):
        with pytest.warns(UserWarning, match=r"3 image files left out, because .avif, .heic cannot be read"):
            assert load(tmp_path, nested=nested).train.class_counts == (3, 2)


@pytest.mark.parametrize("inside", ["", "train"])
def test_all_images_are_training_images_if_there_is_no_test_split(tmp_path: Path, inside: str) -> None:
    make_classes(tmp_path / inside, "ab", count=7)
    splits, whole = load(tmp_path), from_folder(tmp_path / inside)
    assert splits.train.class_counts == (7, 7) and splits.test is None
    assert (splits.train.images == whole.images).all()
    splits = load(tmp_path, test_share=0.2)
    assert "20% of every class is held out" in splits.train.source
    assert (splits.test.images == whole.images[[0, 5, 7, 12]]).all()
    assert (splits.train.images == whole.images[[1, 2, 3, 4, 6, 8, 9, 10, 11, 13]]).all()


def test_from_folder_accepts_a_path_in_the_home_directory(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_classes(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert from_folder("~/mine").source == str(tmp_path / "mine")
    with user_error("path must be a path, but got 5"):
        from_folder(5)  # type: ignore[arg-type]


def test_from_folder_refuses_splits(tmp_path: Path, user_error: ExpectUserError) -> None:
    for name in ("train", "val"):
        make_classes(tmp_path / name, "ab")
    with user_error("has the splits train and val: read both with cs.load"):
        from_folder(tmp_path)
    with user_error("from_folder reads one split"):
        from_folder(tmp_path / "train", test_share=0.5)


def test_splits_without_training_images_are_not_taken_for_classes(tmp_path: Path, user_error: ExpectUserError) -> None:
    for name in ("test", "val"):
        make_classes(tmp_path / name, "ab")
    for read in (from_folder, load):
        with user_error("contains splits, test, val, instead of classes: name them train and test"):
            read(tmp_path)


@pytest.mark.parametrize("name", ["wrapped", "val"])
def test_one_folder_around_all_classes_is_rejected(tmp_path: Path, name: str, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / name, "ab")
    for read in (from_folder, load):
        with user_error(f"contains one folder of folders, '{name}': use {tmp_path / name} instead"):
            read(tmp_path)


def test_one_class_is_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "a")
    with user_error("has one class, 'a': there is nothing to classify"):
        load(tmp_path)


def test_class_may_be_named_train(tmp_path: Path) -> None:
    for name in ("car", "plane", "train"):
        make_classes(tmp_path, [name], count=2)
    assert load(tmp_path).train.class_names == ("car", "plane", "train")


def test_classes_must_match(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "train", "ab")
    make_classes(tmp_path / "test", "abc")
    with user_error("adds 'c': rename it, or add it to the training split"):
        load(tmp_path)


def test_test_images_need_not_have_all_classes(tmp_path: Path) -> None:
    make_classes(tmp_path / "pets" / "train", "abc", count=2)
    make_classes(tmp_path / "pets" / "test", "ac", count=1)
    splits = load(tmp_path / "pets")
    assert splits.test.class_names == splits.train.class_names == ("a", "b", "c")
    assert splits.test.class_counts == (1, 0, 1) and splits.test.labels.tolist() == [0, 2]
    import_dataset(tmp_path / "pets", "imported", data_dir=tmp_path, verbose=False)
    assert load("imported", data_dir=tmp_path).test.class_counts == (1, 0, 1)


def test_empty_folders_are_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    with user_error("no such folder"):
        from_folder(tmp_path / "nowhere")
    with user_error("one folder per class"):
        from_folder(tmp_path)
    make_classes(tmp_path, "a")
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").mkdir()
    with user_error("must have images in every class folder, but not in 'cat', 'dog': remove such folders"):
        from_folder(tmp_path)
    (tmp_path / "dog").rmdir()
    save_image(tmp_path / "cat" / "0.png")
    with user_error("every class must have two images", "but 'cat' has one"):
        load(tmp_path, test_share=0.2)


def test_mixed_sizes_need_a_size(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "a")
    save_image(tmp_path / "b" / "1.jpg", (20, 10))
    with user_error("1.jpg is 20x10, but the first image is 8x8: resize all images with size="):
        from_folder(tmp_path)
    assert from_folder(tmp_path, size=6).images.shape == (6, 3, 6, 6)
    save_image(tmp_path / "a" / "0.jpg", (20, 10))
    with user_error("0.jpg is 20x10, not square"):
        from_folder(tmp_path)


@pytest.mark.parametrize("size", [0, -1, 4097, 2.5, True])
def test_invalid_size_is_rejected(tmp_path: Path, user_error: ExpectUserError, size: int) -> None:
    make_classes(tmp_path, "a")
    with user_error("size must be"):
        from_folder(tmp_path, size=size)
    with user_error("size must be"):
        load(tmp_path, size=size)


def test_images_have_one_channel_only_if_all_are_grey(tmp_path: Path) -> None:
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


def test_pipes_and_dangling_links_are_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "ab")
    os.symlink(tmp_path / "a" / "0.png", tmp_path / "a" / "link.png")
    assert len(from_folder(tmp_path)) == 11
    os.mkfifo(tmp_path / "a" / "pipe.png")
    with user_error("pipe.png: it is a pipe or a device"):
        from_folder(tmp_path)
    os.unlink(tmp_path / "a" / "pipe.png")
    os.symlink(tmp_path / "gone.png", tmp_path / "a" / "lost.png")
    with user_error("no such file", "lost.png"):
        from_folder(tmp_path)


def test_several_blocks_have_the_same_order_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path, "ab", count=70)
    whole = from_folder(tmp_path)
    monkeypatch.setattr("condenset.data.reading.lazy.BLOCK_BYTES", 9 * 3 * 8 * 8)
    in_blocks = from_folder(tmp_path)
    assert (whole.images == in_blocks.images).all() and whole.mean == in_blocks.mean


def test_pillow_supports_every_format() -> None:
    Image.init()
    assert set(FORMATS) <= set(Image.OPEN)
    assert {Image.EXTENSION[extension] for extension in EXTENSIONS} <= set(FORMATS)
