from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from condenset.data import load
from helpers.data_files import ExpectUserError


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_npz_with_both_splits(tmp_path: Path) -> None:
    x, y = pixels(6, 4, 4, 3), [1, 0, 1, 0, 2, 2]
    path = tmp_path / "set.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:3] / 255, y_test=[0, 1, 2], class_names=["a", "b", "c"])
    splits = load(path)
    assert splits.train.class_names == ("a", "b", "c") and splits.train.name == "set"
    assert (splits.train.images[:2].numpy() == x[[1, 3]].transpose(0, 3, 1, 2)).all()
    assert (splits.test.images.numpy() == x[:3].transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y"), ("x_train", "y_train")])
def test_npz_without_a_test_split(tmp_path: Path, keys: tuple[str, str]) -> None:
    x = pixels(10, 4, 4)
    np.savez_compressed(tmp_path / "set.npz", **{keys[0]: x, keys[1]: [0, 1] * 5})
    splits = load(str(tmp_path / "set.npz"))
    assert len(splits.train) == 10 and splits.test is None and "10 train and no test images" in repr(splits)
    splits = load(str(tmp_path / "set.npz"), test_share=0.2)
    assert (splits.test.images[:, 0].numpy() == x[:2]).all() and len(splits.train) == 8
    assert "20% of every class is held out" in splits.test.source


def test_several_blocks_are_sorted_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pixels(20, 4, 4)
    np.savez(tmp_path / "set.npz", x=x, y=[0, 1] * 10)
    whole = load(tmp_path / "set.npz").train
    monkeypatch.setattr("condenset.data.reading.lazy.BLOCK_BYTES", 3 * 16)
    assert (load(tmp_path / "set.npz").train.images == whole.images).all()
    assert (whole.images[:10, 0].numpy() == x[::2]).all()


def _npy(shape: tuple[int, ...], data: bytes, dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (_npy((10**6, 10**6), b"xx"), "declares shape (1000000, 1000000) of uint8"),
        (_npy((2, 4, 4), bytes(31)), "declares"),
        (_npy((2, 4, 4), bytes(33)), "declares"),
        (_npy((-2, 4, 4), bytes(32)), "must not be negative"),
        (_npy((2, 4, 4), bytes(32), "|O"), "numbers or text"),
        (_npy((2, 4, 4), bytes(32)).replace(b"}", b"("), ".npy header cannot be read"),
        (b"nonsense" * 20, ".npy header cannot be read"),
        (b"", ".npy header cannot be read"),
    ],
)
def test_npz_with_wrong_headers_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, member: bytes, message: str
) -> None:
    labels = _npy((2,), bytes(16), "<i8")
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", labels)
    with user_error(message):
        load(tmp_path / "set.npz")


def test_zip_with_wrong_sizes_is_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy((2**20, 2**12, 2**8), b"x"))
        archive.writestr("y.npy", _npy((2,), bytes(16), "<i8"))
        size = archive.getinfo("x.npy").file_size
    path.write_bytes(path.read_bytes().replace(size.to_bytes(4, "little"), (2**31).to_bytes(4, "little")))
    with user_error("a size that their compressed data can have"):
        load(path)


def test_arrays_that_exceed_the_memory_are_not_read(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "set.npz", x=np.zeros((100, 16, 16), np.uint8), y=np.arange(100) % 2)
    monkeypatch.setattr("os.sysconf", lambda name: 100)  # a memory of 10,000 bytes
    with user_error("x.npy needs 25.1 KiB, but this machine has 9.77 KiB of memory"):
        load(tmp_path / "set.npz")


def test_other_invalid_npz_files(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "set.npz"
    with user_error("no such file"):
        load(path)
    path.write_bytes(b"PK not a zip")
    with user_error("not a readable .npz"):
        load(path)
    np.savez(path, a=[1])
    with user_error("must contain x_train, y_train or images, labels or x, y, but contains 'a'"):
        load(path)
    np.savez(path, x=np.array([{}]), y=[0])
    with user_error("numbers or text"):
        load(path)
    x = pixels(4, 4, 4)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x)
    with user_error("x_test and y_test must both be given, or neither"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 1])
    with user_error("labels must be among the 2 class names, but got '2'"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 0, 0, 0], class_names=["a", "b"], x_test=x, y_test=[0, 1, 0, 1])
    with user_error("the train split has an empty class: no image of 'b'"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[1, 1, 1, 1])
    assert load(path).test.class_counts == (0, 4)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=pixels(4, 5, 5), y_test=[0, 1, 0, 1])
    with user_error("the same shape, but got 1x4x4 and 1x5x5"):
        load(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    with user_error("Bad CRC-32"):
        load(path)


def test_numbers_with_gaps_are_class_names_of_both_splits(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    x = pixels(4, 4, 4)
    np.savez(path, x_train=x, y_train=[9, -2, 9, -2], x_test=x[:2], y_test=[9, -2])
    splits = load(path)
    assert splits.test is not None and splits.train.class_names == splits.test.class_names == ("-2", "9")
    assert (splits.test.images[:, 0].numpy() == x[[1, 0]]).all()


def test_arrays_of_a_file_are_resized(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "set.npz"
    x = pixels(4, 4, 6)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x[:2], y_test=[0, 1])
    with user_error("set.npz: image 0 is 6x4, not square: give size=, fit='crop' or fit='pad'"):
        load(path)
    splits = load(path, fit="crop")
    assert splits.test is not None and (splits.test.images[:, 0].numpy() == x[:2, :, 1:5]).all()
    assert load(path, size=3).train.images.shape == (4, 1, 3, 3)


@pytest.mark.parametrize("kind", [bool, float])
def test_boolean_and_whole_float_labels(tmp_path: Path, kind: type) -> None:
    images = np.full((4, 4, 4), 9, np.uint8)
    y = np.array([1, 0, 1, 0]).astype(kind)
    np.savez(tmp_path / "x.npz", x_train=images, y_train=y, x_test=images[:3], y_test=y[:3])
    splits = load(tmp_path / "x.npz")
    assert splits.train.class_names == splits.test.class_names == (("False", "True") if kind is bool else ("0", "1"))
    assert splits.test.class_counts == (1, 2)
