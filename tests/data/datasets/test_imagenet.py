from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from condenset.data import import_dataset, load
from helpers.data_files import ExpectUserError, replace_dataset, save_image

pytestmark = pytest.mark.filterwarnings("ignore:.*should have")  # the test files have few images


def write_tinyimagenet(root: Path) -> None:
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
    write_tinyimagenet(root)
    splits = load("TinyImageNet", data_dir=tmp_path)
    assert splits.train.class_names == ("n01", "goldfish", "n03")  # two classes are named crane, so their ids are used
    assert splits.train.images.shape == (9, 3, 64, 64) and splits.test.labels.tolist() == [0, 1, 2]
    with Image.open(root / "val" / "images" / "val_1.JPEG") as image:
        assert (splits.test.images[0].permute(1, 2, 0).numpy() == np.asarray(image)).all()
    assert splits.train.mean == (0.485, 0.456, 0.406)
    assert load("tinyimagenet", data_dir=tmp_path, size=16).train.size == 16
    assert load(root).train.class_names == splits.train.class_names


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.JPEG\tn99\t0", "line 4: 'n99' is not one of the 3 classes"),
        ("../../x.JPEG\tn01\t0", "is not a file name"),
        ("..\\x.JPEG\tn01\t0", "is not a file name"),
        ("val_0.JPEG", "line 4: ''"),
        ("gone.JPEG\tn01", "no such file"),
    ],
)
def test_invalid_annotations_are_rejected(tmp_path: Path, user_error: ExpectUserError, line: str, message: str) -> None:
    write_tinyimagenet(tmp_path)
    with (tmp_path / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")
    with user_error(message):
        load(tmp_path)


def test_imagenet_is_resized_to_64(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for wnid in ("n01", "n02"):
            save_image(tmp_path / "imagenet" / split / wnid / "x.JPEG", (90, 70))
            save_image(tmp_path / "imagenet" / split / wnid / "y.JPEG", (30, 80), "CMYK")
    save_image(tmp_path / "imagenet" / "train" / "n01" / "z.JPEG", (90, 70))
    splits = load("imagenet", data_dir=tmp_path)
    assert splits.train.images.shape == (5, 3, 64, 64) and splits.test.class_names == ("n01", "n02")
    assert load("imagenet", data_dir=tmp_path, size=32).test.size == 32


@pytest.mark.filterwarnings("ignore:.*unreadable image files are left out")
def test_import_names_the_unreadable_files_and_can_leave_them_out(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tinyimagenet(tmp_path / "tiny-imagenet-200")
    replace_dataset(monkeypatch, "tinyimagenet", num_train=9, num_test=3)
    for number in range(2):
        (tmp_path / "tiny-imagenet-200" / "train" / "n01" / "images" / f"n01_{number}.JPEG").write_bytes(b"x")
    with user_error("n01_0.JPEG is not a readable image", "(and 1 more: ", "skip_bad=True"):
        import_dataset("tinyimagenet", "tiny", data_dir=tmp_path)
    import_dataset("tinyimagenet", "tiny", data_dir=tmp_path, skip_bad=True)
    assert len(load("tiny", data_dir=tmp_path).train) == 7


def test_exif_orientation_is_ignored_as_in_published_results(tmp_path: Path) -> None:
    write_tinyimagenet(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    path = tmp_path / "train" / "n01" / "images" / "n01_0.JPEG"
    save_image(path, (64, 64), exif=exif)
    with Image.open(path) as image:
        pixels = np.asarray(image)
    assert (load(tmp_path, verbose=False).train.images[0].permute(1, 2, 0).numpy() == pixels).all()
