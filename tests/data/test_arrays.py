from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import Refused
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.data import from_arrays, load


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 5),
    size=st.integers(1, 6),
    channels=st.sampled_from([1, 3]),
    layout=st.sampled_from(["NCHW", "NHWC", "NHW"]),
    kind=st.sampled_from(["uint8", "float16", "float32", "float64"]),
    as_tensor=st.booleans(),
)
def test_every_layout_and_type_gives_the_same_pixels(
    count: int, size: int, channels: int, layout: str, kind: str, as_tensor: bool
) -> None:
    wanted = pixels(count, channels, size, size)
    if layout == "NHW":
        wanted = wanted[:, :1]
    if layout == "NHWC" and channels == 3 and size in (1, 3):
        layout = "NCHW" if size == 3 else layout  # (N, 3, 3, 3) is read as channels first
    x: Any = {"NCHW": wanted, "NHWC": np.moveaxis(wanted, 1, 3), "NHW": wanted[:, 0]}[layout]
    x = x if kind == "uint8" else (x / 255).astype(kind)
    x = torch.from_numpy(np.ascontiguousarray(x)) if as_tensor else x
    data = from_arrays(x, np.zeros(count, int))
    assert data.images.is_contiguous() and (data.images.numpy() == wanted).all()


def test_mean_and_std_are_of_the_pixels() -> None:
    x = pixels(7, 3, 5, 5)
    x[:, 2] = 200
    data = from_arrays(x, [0] * 7)
    values = x.astype(np.float64) / 255
    assert data.mean == pytest.approx(values.mean((0, 2, 3)), abs=1e-12)
    assert data.std[:2] == pytest.approx(values.std((0, 2, 3))[:2], abs=1e-12)
    assert data.std[2] == 1 / 255  # a constant channel can still be divided by it
    given = from_arrays(x, [0] * 7, mean=np.array([0.1, 0.2, 0.3]), std=(1, 1, 1))
    assert given.mean == (0.1, 0.2, 0.3) and given.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "values",
    [5, "abc", "5", ["0.5"], [True], [None], [float("nan")], [float("inf")], [10**400], [16**5000], [], [1, 2]],
)
def test_a_mean_or_std_that_is_none_is_refused(refused: Refused, values: Any) -> None:
    for what, rule in (("mean", "mean must be a number for"), ("std", "std must be a number above 0 for")):
        with refused(f"{rule} each channel (1 or 3), but got"):
            from_arrays(pixels(2, 4, 4), [0, 1], **{what: values})


def test_uint8_is_shared_and_read_only_memory_copied() -> None:
    x = pixels(2, 1, 3, 3)
    shared = from_arrays(x, [0, 1])
    x[0] = 0
    assert shared.images[0].max() == 0
    x.flags.writeable = False
    assert from_arrays(x, [0, 1]).images.data_ptr() != x.ctypes.data


@pytest.mark.parametrize(
    ("x", "part"),
    [
        (np.full((2, 4, 4), 2.0), "32 values do not, the first at (0, 0, 0, 0): 2.0"),
        (
            np.where(np.arange(32).reshape(2, 4, 4) == 21, np.nan, 0.5),
            "1 values do not, the first at (1, 0, 1, 1): nan",
        ),
        (np.where(np.arange(32).reshape(2, 4, 4) == 3, -np.inf, 0.5), "the first at (0, 0, 0, 3): -inf"),
        (np.zeros((2, 4, 4), np.int64), "must be uint8, or floats in 0..1, but got 'int64'"),
        (np.zeros((2, 4, 4), bool), "'bool'"),
        (np.zeros((2, 4, 4), object), "'object'"),
        (pixels(2, 4), "(N, H, W)"),
        (pixels(2, 4, 4, 2), "1 or 3 channels"),
        (pixels(2, 4, 4, 4, 3), "1 or 3 channels"),
        (pixels(2, 4, 5), "square"),
        (pixels(2, 3, 5, 3), "square"),
        ([[[1, 2]], [[1]]], "one array"),
        (pixels(0, 4, 4), "labels must have shape (0,)"),
    ],
)
def test_bad_pixels_are_refused(refused: Refused, x: Any, part: str) -> None:
    with refused(part):
        from_arrays(x, [0, 1])


def test_bad_float_far_into_the_set_is_found(refused: Refused) -> None:
    x = np.zeros((3000, 2, 2), np.float32)
    x[2500, 1, 0] = x[2999] = 1.5
    with refused("5 values do not, the first at (2500, 0, 1, 0): 1.5"):
        from_arrays(x, [0] * 3000)


@pytest.mark.parametrize(
    ("y", "part"),
    [
        ([0, 2, 5], "but no image has 1, 3, 4"),
        ([0, 1, 10**12], "but no image has 2, 3, 4, 5, 6, …"),
        ([-1, 0, 1], "labels must lie in 0.., but got -1"),
        ([0.0, 1.0, 2.0], "whole numbers or names"),
        ([True, False, True], "whole numbers or names"),
        ([0, 1], "labels must have shape (3,)"),
        ([[0, 1], [0, 1], [1, 0]], "labels must have shape (3,)"),
        ([None, "a", "b"], "names must be text"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "no image has 2"),
    ],
)
def test_bad_labels_are_refused(refused: Refused, y: Any, part: str) -> None:
    with refused(part):
        from_arrays(pixels(3, 4, 4), y)


def test_class_names_and_named_labels(refused: Refused) -> None:
    x = pixels(3, 4, 4)
    assert from_arrays(x, ["dog", "cat", "dog"]).class_names == ("cat", "dog")
    assert from_arrays(x, ["dog", "cat", "dog"]).labels.tolist() == [1, 0, 1]
    assert from_arrays(x, ["dog", "cat", "dog"], class_names=np.array(["dog", "cat"])).labels.tolist() == [0, 1, 0]
    assert from_arrays(x, torch.tensor([[0], [1], [0]], dtype=torch.int32)).class_names == ("0", "1")
    with refused("empty class: no image of 'c'"):
        from_arrays(x, [0, 1, 0], class_names=["a", "b", "c"])
    with refused("labels must lie in 0..1, but got 2"):
        from_arrays(x, [0, 1, 2], class_names=["a", "b"])
    with refused("class names must differ, but got 'a'"):
        from_arrays(x, [0, 1, 2], class_names=["a", "b", "a"])
    with refused("among the 1 class names, but got 'dog'"):
        from_arrays(x, ["dog", "cat", "dog"], class_names=["cat"])


def test_npz_with_both_splits(tmp_path: Path) -> None:
    x, y = pixels(6, 4, 4, 3), [1, 0, 1, 0, 2, 2]
    path = tmp_path / "set.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x[:3] / 255, y_test=[0, 1, 2], class_names=["a", "b", "c"])
    splits = load(path)
    assert splits.train.class_names == ("a", "b", "c") and splits.train.name == "set"
    assert (splits.train.images[:2].numpy() == x[[1, 3]].transpose(0, 3, 1, 2)).all()
    assert (splits.test.images.numpy() == x[:3].transpose(0, 3, 1, 2)).all()


@pytest.mark.parametrize("keys", [("images", "labels"), ("x", "y"), ("x_train", "y_train")])
def test_npz_without_a_test_split_is_held_out(tmp_path: Path, keys: tuple[str, str]) -> None:
    x = pixels(10, 4, 4)
    np.savez_compressed(tmp_path / "set.npz", **{keys[0]: x, keys[1]: [0, 1] * 5})
    splits = load(str(tmp_path / "set.npz"))
    assert (splits.test.images[:, 0].numpy() == x[:2]).all() and len(splits.train) == 8
    assert "every fifth" in splits.test.source


def test_more_than_one_block_is_put_in_class_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pixels(20, 4, 4)
    np.savez(tmp_path / "set.npz", x=x, y=[0, 1] * 10)
    whole = load(tmp_path / "set.npz").train
    monkeypatch.setattr("condenset.data.raw.BLOCK_BYTES", 3 * 16)
    assert (load(tmp_path / "set.npz").train.images == whole.images).all()
    assert (whole.images[:8, 0].numpy() == x[[2, 4, 6, 8, 12, 14, 16, 18]]).all()


def _npy(shape: tuple[int, ...], data: bytes, dtype: str = "|u1") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


@pytest.mark.parametrize(
    ("member", "part"),
    [
        (_npy((10**6, 10**6), b"xx"), "promises (1000000, 1000000) of uint8"),
        (_npy((2, 4, 4), bytes(31)), "promises"),
        (_npy((2, 4, 4), bytes(33)), "promises"),
        (_npy((-2, 4, 4), bytes(32)), "must not be negative"),
        (_npy((2, 4, 4), bytes(32), "|O"), "numbers or text"),
        (_npy((2, 4, 4), bytes(32)).replace(b"}", b"("), ".npy header cannot be read"),
        (b"nonsense" * 20, ".npy header cannot be read"),
        (b"", ".npy header cannot be read"),
    ],
)
def test_lying_npz_is_refused(tmp_path: Path, refused: Refused, member: bytes, part: str) -> None:
    labels = _npy((2,), bytes(16), "<i8")
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", labels)
    with refused(part):
        load(tmp_path / "set.npz")


def test_zip_that_lies_about_its_sizes_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy((2**20, 2**12, 2**8), b"x"))
        archive.writestr("y.npy", _npy((2,), bytes(16), "<i8"))
        size = archive.getinfo("x.npy").file_size
    path.write_bytes(path.read_bytes().replace(size.to_bytes(4, "little"), (2**31).to_bytes(4, "little")))
    with refused("a size they can have"):
        load(path)


def test_other_bad_npz_files(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "set.npz"
    with refused("no such file"):
        load(path)
    path.write_bytes(b"PK not a zip")
    with refused("not a readable .npz"):
        load(path)
    np.savez(path, a=[1])
    with refused("must hold x_train, y_train or images, labels or x, y, but holds 'a'"):
        load(path)
    np.savez(path, x=np.array([{}]), y=[0])
    with refused("numbers or text"):
        load(path)
    x = pixels(4, 4, 4)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x)
    with refused("x_test and y_test must come together"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 2, 1])
    with refused("labels must lie in 0..1, but got 2"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 0, 0, 0])
    with refused("empty class: no image of '1'"):
        load(path)
    np.savez(path, x_train=x, y_train=[0, 1, 0, 1], x_test=pixels(4, 5, 5), y_test=[0, 1, 0, 1])
    with refused("one shape, but got 1x4x4 and 1x5x5"):
        load(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 255]) + whole[201:])
    with refused("Bad CRC-32"):
        load(path)
