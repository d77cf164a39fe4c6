from __future__ import annotations

import gzip
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.data import load
from condenset.data.datasets.mnist import read_idx
from condenset.errors import UserError
from helpers.data_files import (
    ExpectUserError,
    idx_bytes,
    write_idx,
    write_mnist,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*should have")  # the test files have few images

IDX = "train-images-idx3-ubyte"


def test_mnist_is_read_plain_and_compressed_in_class_order(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    plain = load("mnist", data_dir=tmp_path)
    for file in list(raw.iterdir()):
        (raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    compressed = load("MNIST", data_dir=tmp_path)
    assert plain.train.fingerprint == compressed.train.fingerprint
    pixels = np.random.default_rng(40).integers(0, 256, (40, 28, 28))
    assert (plain.train.images[:4, 0].numpy() == pixels[::10]).all()
    assert plain.train.labels.tolist() == sorted(list(range(10)) * 4)
    assert plain.train.mean == (0.1307,) and plain.train.std == (0.3081,) and not plain.train.allow_hflip


@pytest.mark.parametrize("directory", ["FashionMNIST/raw", "FashionMNIST", "."])
def test_fashionmnist_is_found_in_each_directory(tmp_path: Path, directory: str) -> None:
    write_mnist(tmp_path / directory)
    data = load("fashion-mnist", data_dir=tmp_path).train
    assert data.class_names[9] == "Ankle boot" and data.allow_hflip and data.name == "fashionmnist"


@settings(max_examples=40)
@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=3), compressed=st.booleans(), seed=st.integers(0, 9))
def test_idx_round_trip(shape: list[int], compressed: bool, seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / ("x.gz" if compressed else "x")
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if compressed else content)
        array_read = read_idx(path, len(shape))
        assert array_read.shape == array.shape and (array_read == array).all()
        path.write_bytes(gzip.compress(content[:-1]) if compressed else content[:-1])
        with pytest.raises(UserError):
            read_idx(path, len(shape))


GOOD = idx_bytes(np.zeros((4, 3, 3), np.uint8))
LARGE = struct.pack(">HBB3I", 0, 8, 3, 1 << 20, 1 << 10, 2)
HUGE = struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begin with"),
        (GOOD[:10], "begin with"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "begin with"),
        (idx_bytes(np.zeros(4)), "begin with"),
        (GOOD[:-1], "declares 36 bytes"),
        (GOOD + b"x", "declares 36 bytes"),
        (HUGE + b"x" * 100, "declares"),
        (LARGE, "must declare at most 1073741824 bytes of data, but declares 2147483648"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_invalid_idx_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, content: bytes, message: str, compressed: bool
) -> None:
    path = tmp_path / (IDX + ".gz" * compressed)
    path.write_bytes(gzip.compress(content) if compressed else content)
    with user_error(message, str(path)), limit_memory():
        read_idx(path, 3)


class limit_memory:
    """Fail if the block allocates more than a few megabytes."""

    def __enter__(self) -> None:
        tracemalloc.start()

    def __exit__(self, *error: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20


def test_gzip_is_not_unpacked_beyond_its_header(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / f"{IDX}.gz"
    path.write_bytes(gzip.compress(GOOD + bytes(100 << 20), 1))
    with user_error("it has more"), limit_memory():
        read_idx(path, 3)


@pytest.mark.parametrize("damage", ["cut", "noise", "plain"])
def test_broken_gzip_is_rejected(tmp_path: Path, user_error: ExpectUserError, damage: str) -> None:
    random = np.random.default_rng(0).integers(0, 256, (20, 9, 9))
    content = gzip.compress(idx_bytes(random))
    noisy = content[:200] + bytes(200) + content[400:]
    path = tmp_path / f"{IDX}.gz"
    path.write_bytes({"cut": content[: len(content) // 2], "noise": noisy, "plain": GOOD}[damage])
    with user_error("cannot read"):
        read_idx(path, 3)


def test_mnist_with_wrong_labels_is_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(39) % 10)
    with user_error("must have 40 labels, one per image"):
        load("mnist", data_dir=tmp_path)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(40) % 11)
    with user_error("labels must be in 0..9, but got 10"):
        load("mnist", data_dir=tmp_path)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(40) % 9)
    with user_error("empty class: no image of '9'"):
        load("mnist", data_dir=tmp_path)
    write_mnist(raw, size=20)
    with user_error("must be 1x28x28, but got 1x20x20"):
        load("mnist", data_dir=tmp_path)
