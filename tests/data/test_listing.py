from __future__ import annotations

from pathlib import Path

import pytest

from condenset.data import DATASETS, check_dataset, import_dataset, list_datasets
from helpers.data_files import ExpectUserError, make_classes, replace_dataset, write_mnist


def test_check_dataset_checks_the_number_of_images(tmp_path: Path, user_error: ExpectUserError) -> None:
    report = check_dataset("digits")
    assert (report.num_train, report.num_test, report.num_classes, report.shape) == (1433, 364, 10, (1, 8, 8))
    assert report.mean == report.measured_mean and "1,433 train and 364 test images of 1x8x8" in str(report)
    write_mnist(tmp_path / "MNIST")
    with user_error("mnist must have 60000 train and 10000 test images, but got 40 and 20"):
        check_dataset("mnist", data_dir=tmp_path)
    make_classes(tmp_path / "own")
    assert check_dataset(tmp_path / "own").num_train == 8
    (tmp_path / "own" / "a" / "3.png").write_bytes(b"x")
    with user_error("3.png is not a readable image"):
        check_dataset(tmp_path / "own", size=8)


def test_list_datasets_has_registered_and_imported_ones(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST")
    make_classes(tmp_path / "own")
    import_dataset(tmp_path / "own", "mine", data_dir=tmp_path)
    broken = import_dataset(tmp_path / "own", "torn", data_dir=tmp_path)
    (broken / "meta.json").write_text("{")
    entries = {entry.name: entry for entry in list_datasets(tmp_path)}
    assert list(entries)[: len(DATASETS)] == list(DATASETS)
    states = {name: entries[name].state for name in ("digits", "mnist", "cifar10", "mine", "torn")}
    assert list(states.values()) == ["bundled", "ready", "missing", "imported", "broken"]
    assert entries["mine"].num_train == 8 and entries["mine"].shape == (3, 8, 8)
    assert entries["cifar10"].download_bytes == 170_498_071 and entries["mnist"].path == tmp_path / "MNIST"


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
