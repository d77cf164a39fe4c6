from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from condenset.data import check_dataset, import_dataset
from helpers.data_files import ExpectUserError, make_classes, replace_dataset, save_image, write_mnist


def test_check_dataset_checks_the_number_of_images(tmp_path: Path, user_error: ExpectUserError) -> None:
    report = check_dataset("digits")
    assert (report.num_train, report.num_test, report.num_classes, report.shape) == (1433, 364, 10, (1, 8, 8))
    assert report.mean == report.measured_mean and "1,433 train and 364 test images of 1x8x8" in str(report)
    write_mnist(tmp_path / "MNIST")
    with user_error("mnist must have 60000 train and 10000 test images, but got 40 and 20"):
        check_dataset("mnist", data_dir=tmp_path)


def test_report_of_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "own"
    make_classes(root / "train", "ab", count=3)
    save_image(root / "train" / "b" / "wide.jpg", (20, 10), mode="L")
    make_classes(root / "test", "ab", count=2)
    for path in ("notes.txt", "train/a/list.TXT", "train/a/.DS_Store", "train/LICENSE", "train/loose.png"):
        (root / path).write_text("")
    make_classes(root / "extra", "c", count=1)
    report = check_dataset(root, size=8)
    assert (report.num_train, report.num_test) == (7, 4)
    assert report.class_counts == {"train": {"a": 3, "b": 4}, "test": {"a": 2, "b": 2}}
    assert report.modes == {"RGB": 10, "L": 1} and report.sizes == {"8x8": 10, "20x10": 1}
    assert report.ignored_files == {".txt": 2, "hidden": 1, "no extension": 1, ".png": 1}
    assert report.ignored_folders == ["extra"] and report.unreadable == {}
    lines = str(report).splitlines()
    assert lines[0].startswith("own: 7 train and 4 test images of 3x8x8, 2 classes; pixel mean 0.")
    assert lines[1:4] == ["classes: a 3 + 2, b 4 + 2", "modes: RGB 10, L 1", "sizes: 8x8 10, 20x10 1"]
    assert lines[4] == "duplicates: 4 test images are also training images" and report.num_shared == 4
    assert lines[6:] == ["ignored folders: 'extra'"]
    assert json.loads(json.dumps(asdict(report)))["ignored_files"][".txt"] == 2


def test_report_has_all_unreadable_files(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", "ab", count=5)
    make_classes(tmp_path / "test", "ab", count=2)
    whole = (tmp_path / "train" / "a" / "1.png").read_bytes()
    broken = {"train/a/0.png": b"x", "train/a/1.png": whole[:150], "test/b/1.png": b""}  # one has a complete header
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    report = check_dataset(tmp_path)
    assert list(report.unreadable) == [str(tmp_path / name) for name in broken]
    assert report.class_counts == {"train": {"a": 3, "b": 5}, "test": {"a": 2, "b": 1}}
    assert report.modes == {"RGB": 11}
    assert str(report).splitlines()[-4] == "unreadable files: 3"
    assert str(report).splitlines()[-1].startswith(f"  {tmp_path / 'test' / 'b' / '1.png'} is not a readable image")


def test_report_names_the_smallest_and_largest_of_many_classes(tmp_path: Path) -> None:
    for number in range(1, 13):
        make_classes(tmp_path, [f"c{number:02}"], count=number)
    report = check_dataset(tmp_path)
    assert "12 classes" in str(report) and "and no test images" in str(report)
    assert "classes: smallest c01 1, c02 2, c03 3; largest c10 10, c11 11, c12 12" in str(report)


def test_report_of_other_test_images_and_of_an_import(tmp_path: Path) -> None:
    make_classes(tmp_path / "own", "ab", count=3)
    make_classes(tmp_path / "other", "ab", count=2)
    (tmp_path / "other" / "b" / "x.csv").write_text("")
    report = check_dataset(tmp_path / "own", test=tmp_path / "other")
    assert report.num_test == 4 and report.modes == {"RGB": 10} and report.ignored_files == {".csv": 1}
    directory = import_dataset(tmp_path / "own", "mine", data_dir=tmp_path, test=tmp_path / "other")
    for name_or_path in ("mine", directory):
        imported = check_dataset(name_or_path, data_dir=tmp_path)
        assert imported.class_counts == report.class_counts and imported.measured_mean == report.measured_mean
        assert not imported.modes and not imported.ignored_files


@pytest.mark.parametrize("value", [0, 255])
def test_check_dataset_detects_other_pixels(
    value: int, tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "MNIST")
    for name in ("train", "t10k"):
        path = tmp_path / "MNIST" / f"{name}-images-idx3-ubyte"
        content = bytearray(path.read_bytes())
        content[16:] = bytes([value]) * (len(content) - 16)
        path.write_bytes(content)
    replace_dataset(monkeypatch, "mnist", num_train=40, num_test=20)
    with user_error(f"must have the mean 0.131, but got {value / 255:.3f}; check that these are the files"):
        check_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("use_import", [False, True])
def test_report_counts_test_images_that_are_training_images(tmp_path: Path, use_import: bool) -> None:
    for split, values in (("train", range(4)), ("test", range(3, 6))):
        for name, offset in (("a", 0), ("b", 10)):
            for value in values:
                save_image(tmp_path / "own" / split / name / f"{value}.png", value=value + offset)
    save_image(tmp_path / "own" / "test" / "b" / "9.png", value=0)  # of another class
    if use_import:
        import_dataset(tmp_path / "own", "mine", data_dir=tmp_path)
    report = check_dataset("mine" if use_import else tmp_path / "own", data_dir=tmp_path)
    assert report.num_shared == 3 and "duplicates: 3 test images are also training images" in str(report)
    assert check_dataset(tmp_path / "own" / "train").num_shared == 0


def test_report_has_sizes_after_rotation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    make_classes(tmp_path, "ab", count=1, size=(8, 6))
    for extension in ("jpg", "png", "tif"):
        save_image(tmp_path / "a" / f"rotated.{extension}", (8, 6), exif=exif)
    assert check_dataset(tmp_path, size=6).sizes == {"6x8": 3, "8x6": 2}


def test_classes_too_small_for_a_hold_out_are_an_error(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path, "a", count=3)
    make_classes(tmp_path, ["b", "c"], count=1)
    with user_error("but 'b', 'c' have one"):
        check_dataset(tmp_path, test_share=0.5)
    make_classes(tmp_path, ["b", "c"], count=2)
    report = check_dataset(tmp_path, test_share=0.5)
    assert (report.num_train, report.num_test) == (3, 4)


def test_report_of_an_import_with_other_test_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "own", "ab", count=3)
    make_classes(tmp_path / "photos", "ab", count=2)
    (tmp_path / "photos" / "a" / "bad.png").write_bytes(b"x")
    import_dataset(tmp_path / "own", "mine")
    report = check_dataset("mine", test=tmp_path / "photos")
    assert report.class_counts["test"] == {"a": 2, "b": 2} and report.modes == {"RGB": 4}
    assert list(report.unreadable) == [str(tmp_path / "photos" / "a" / "bad.png")]
    assert not report.ignored_files and not report.ignored_folders


def test_report_of_an_import_ignores_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path / "mine", "ab", count=3)
    import_dataset(tmp_path / "mine", "mine")
    monkeypatch.chdir(tmp_path)
    assert check_dataset("mine").ignored_folders == []
