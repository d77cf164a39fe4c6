"""Files that are larger, and pixels that are other, than those of a known set."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from data_files import Refused, make_classes, write_cifar10, write_mnist

from condenset import data as data_module
from condenset.data import check_files, import_data, load
from condenset.data.readers import read_cifar10


def test_a_file_too_large_for_cifar_is_not_read(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path)
    size = (tmp_path / "batches.meta").stat().st_size
    monkeypatch.setattr("condenset.data.readers.CIFAR_FILE_MOST", size - 1)
    with refused(f"batches.meta must have at most {size - 1} bytes, but got {size}"):
        read_cifar10(tmp_path)


def test_a_huge_meta_file_is_not_read(tmp_path: Path, refused: Refused) -> None:
    make_classes(tmp_path / "source", "abc", count=6)
    folder = import_data(tmp_path / "source", "mine")
    with (folder / "meta.json").open("rb+") as file:
        file.truncate((1 << 26) + 1)  # sparse: takes no disk
    with refused("meta.json must have at most"):
        load("mine")


@pytest.mark.parametrize("value", [0, 255])
def test_check_sees_a_known_set_of_other_pixels(
    value: int, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "MNIST")
    for name in ("train", "t10k"):
        path = tmp_path / "MNIST" / f"{name}-images-idx3-ubyte"
        content = bytearray(path.read_bytes())
        content[16:] = bytes([value]) * (len(content) - 16)
        path.write_bytes(content)
    source = dataclasses.replace(data_module.SOURCES["mnist"], num_train=40, num_test=20)
    monkeypatch.setitem(data_module.SOURCES, "mnist", source)
    with refused(f"must have the mean 0.131, but got {value / 255:.3f}: another dataset?"):
        check_files("mnist", data_dir=tmp_path)
