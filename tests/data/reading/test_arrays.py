from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.data import from_arrays
from helpers.data_files import ExpectUserError


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@settings(max_examples=60)
@given(
    count=st.integers(2, 5),
    size=st.integers(1, 6),
    channels=st.sampled_from([1, 3]),
    layout=st.sampled_from(["NCHW", "NHWC", "NHW"]),
    kind=st.sampled_from(["uint8", "float16", "float32", "float64"]),
    as_tensor=st.booleans(),
)
def test_every_layout_and_type_gives_the_same_pixels(
    count: int, size: int, channels: int, layout: str, kind: str, as_tensor: bool
) -> None:
    expected = pixels(count, channels, size, size)
    if layout == "NHW":
        expected = expected[:, :1]
    if layout == "NHWC" and channels == 3 and size in (1, 3):
        layout = "NCHW" if size == 3 else layout  # (N, 3, 3, 3) is read as channels first
    x: Any = {"NCHW": expected, "NHWC": np.moveaxis(expected, 1, 3), "NHW": expected[:, 0]}[layout]
    x = x if kind == "uint8" else (x / 255).astype(kind)
    x = torch.from_numpy(np.ascontiguousarray(x)) if as_tensor else x
    data = from_arrays(x, np.arange(count) % 2)
    assert data.images.is_contiguous() and (data.images.numpy() == expected).all()


def test_mean_and_std_are_of_the_pixels() -> None:
    x = pixels(7, 3, 5, 5)
    x[:, 2] = 200
    data = from_arrays(x, [0, *[1] * 6])
    values = x.astype(np.float64) / 255
    assert data.mean == pytest.approx(values.mean((0, 2, 3)), abs=1e-12)
    assert data.std[:2] == pytest.approx(values.std((0, 2, 3))[:2], abs=1e-12)
    assert data.std[2] == 1 / 255  # images are divided by it, also in a constant channel
    explicit = from_arrays(x, [0, *[1] * 6], mean=np.array([0.1, 0.2, 0.3]), std=(1, 1, 1))
    assert explicit.mean == (0.1, 0.2, 0.3) and explicit.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "values",
    [5, "abc", "5", ["0.5"], [True], [None], [float("nan")], [float("inf")], [10**400], [16**5000], [], [1, 2]],
)
def test_invalid_mean_or_std_is_rejected(user_error: ExpectUserError, values: Any) -> None:
    for name, rule in (("mean", "mean must be a number for"), ("std", "std must be a number above 0 for")):
        with user_error(f"{rule} each channel (1 or 3), but got"):
            from_arrays(pixels(2, 4, 4), [0, 1], **{name: values})


def test_uint8_is_shared_and_read_only_memory_is_copied() -> None:
    x = pixels(2, 1, 3, 3)
    shared = from_arrays(x, [0, 1])
    x[0] = 0
    assert shared.images[0].max() == 0
    x.flags.writeable = False
    assert from_arrays(x, [0, 1]).images.data_ptr() != x.ctypes.data


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.full((2, 4, 4), 2.0), "float pixels must be in 0..1, before any normalisation, but got values from 2 to 2"),
        (np.where(np.arange(32).reshape(2, 4, 4) == 21, np.nan, 0.5), "but got values from nan to nan"),
        (np.where(np.arange(32).reshape(2, 4, 4) == 3, -np.inf, 0.5), "but got values from -inf to 0.5"),
        (np.where(np.arange(32).reshape(2, 4, 4) == 3, 256, 7), "integer pixels must be in 0..255"),
        (np.full((2, 4, 4), -1, np.int8), "but got values from -1 to -1"),
        (np.zeros((2, 4, 4), object), "integers in 0..255, or floats in 0..1, but got 'object'"),
        (pixels(2, 4), "(N, H, W)"),
        (pixels(2, 4, 4, 2), "1 or 3 channels"),
        (pixels(2, 4, 4, 4, 3), "1 or 3 channels"),
        (pixels(2, 4, 5), "image 0 is 5x4, not square: give size=, fit='crop' or fit='pad'"),
        (pixels(2, 3, 5, 3), "image 0 is 3x5, not square"),
        ([[[1, 2]], [[1]]], "one array"),
        (pixels(0, 4, 4), "labels must have shape (0,)"),
    ],
)
def test_invalid_pixels_are_rejected(user_error: ExpectUserError, x: Any, message: str) -> None:
    with user_error(message):
        from_arrays(x, [0, 1])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, 1.5, 2.0], "whole numbers or names, but got 1.5"),
        ([0.0, np.nan, 2.0], "whole numbers or names, but got nan"),
        ([0.0, 1e300, 2.0], "whole numbers or names, but got 1e+300"),
        ([0j, 1j, 2j], "whole numbers or names, but got 'complex128'"),
        ([0, 1], "labels must have shape (3,)"),
        ([[0, 1], [0, 1], [1, 0]], "labels must have shape (3,)"),
        ([None, "a", "b"], "names must be text"),
    ],
)
def test_invalid_labels_are_rejected(user_error: ExpectUserError, y: Any, message: str) -> None:
    with user_error(message):
        from_arrays(pixels(3, 4, 4), y)


def test_class_names_and_named_labels(user_error: ExpectUserError) -> None:
    x = pixels(3, 4, 4)
    assert from_arrays(x, ["dog", "cat", "dog"]).class_names == ("cat", "dog")
    assert from_arrays(x, ["dog", "cat", "dog"]).labels.tolist() == [1, 0, 1]
    assert from_arrays(x, ["dog", "cat", "dog"], class_names=np.array(["dog", "cat"])).labels.tolist() == [0, 1, 0]
    assert from_arrays(x, torch.tensor([[0], [1], [0]], dtype=torch.int32)).class_names == ("0", "1")
    for labels in ([0, 1, 0], ["a", "b", "a"]):  # test images need not have all classes
        assert from_arrays(x, labels, class_names=["a", "b", "c"]).class_counts == (2, 1, 0)
    with user_error("must be at least one image"):
        from_arrays(pixels(0, 4, 4), [], class_names=["a", "b"])
    with user_error("labels must be in 0..1, but got 2"):
        from_arrays(x, [0, 1, 2], class_names=["a", "b"])
    with user_error("class names must differ, but got 'a'"):
        from_arrays(x, [0, 1, 2], class_names=["a", "b", "a"])
    with user_error("among the 1 class names, but got 'dog'"):
        from_arrays(x, ["dog", "cat", "dog"], class_names=["cat"])
    with user_error("labels must be in 0..1, but got -1"):
        from_arrays(x, [0, 1, -1], class_names=["a", "b"])


@pytest.mark.parametrize(
    ("y", "names", "labels"),
    [
        ([9, 2, 5], ("2", "5", "9"), [2, 0, 1]),
        ([1, -1, 1], ("-1", "1"), [1, 0, 1]),
        (np.array([0, 2**64 - 1, 0], np.uint64), ("0", str(2**64 - 1)), [0, 1, 0]),
        (["10", "2", "-1"], ("-1", "2", "10"), [2, 1, 0]),
        (["1.5", "10", "1.25"], ("1.25", "1.5", "10"), [1, 2, 0]),
        (["10", "2", "b"], ("10", "2", "b"), [0, 1, 2]),
    ],
)
def test_values_of_labels_become_sorted_class_names(y: Any, names: tuple[str, ...], labels: list[int]) -> None:
    data = from_arrays(pixels(3, 4, 4), y)
    assert data.class_names == names and data.labels.tolist() == labels


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", "int64"])
def test_integers_in_the_range_of_pixels_are_accepted(dtype: str) -> None:
    x = pixels(2, 4, 4) // 2
    data = from_arrays(x.astype(dtype), [0, 1])
    assert data.images.dtype == torch.uint8 and (data.images[:, 0].numpy() == x).all()


def test_size_and_fit_of_arrays(user_error: ExpectUserError) -> None:
    x = pixels(2, 4, 6, 3)
    cropped = from_arrays(x, [0, 1], fit="crop")
    assert (cropped.images.permute(0, 2, 3, 1).numpy() == x[:, :, 1:5]).all()
    padded = from_arrays(x, [0, 1], fit="pad", background="#010203").images.permute(0, 2, 3, 1).numpy()
    assert (padded[:, 1:5] == x).all() and (padded[:, [0, 5]] == [1, 2, 3]).all()
    assert from_arrays(x, [0, 1], size=3).images.shape == (2, 3, 3, 3)
    square = pixels(2, 1, 4, 4)
    assert (from_arrays(square, [0, 1], size=4, fit="pad").images.numpy() == square).all()
    with user_error("fit must be one of crop, pad, but got 'stretch'"):
        from_arrays(x, [0, 1], fit="stretch")


def test_whole_float_labels_are_integers() -> None:
    data = from_arrays(pixels(3, 4, 4), np.array([5.0, 2.0, 5.0], np.float32))
    assert data.class_names == ("2", "5") and data.labels.tolist() == [1, 0, 1]


def test_boolean_labels_are_classes() -> None:
    x, y = pixels(3, 4, 4), [True, False, True]
    assert from_arrays(x, y).class_names == ("False", "True") and from_arrays(x, y).labels.tolist() == [1, 0, 1]
    named = from_arrays(x, torch.tensor(y), class_names=["healthy", "ill"])
    assert named.class_names == ("healthy", "ill") and named.labels.tolist() == [1, 0, 1]


def test_boolean_pixels_are_black_and_white() -> None:
    x = pixels(2, 4, 4) > 127
    assert (from_arrays(x, [0, 1]).images[:, 0].numpy() == np.where(x, 255, 0)).all()


@pytest.mark.parametrize("kind", ["uint8", "int64"])
def test_pixels_of_0_and_1_give_a_warning(kind: str) -> None:
    with pytest.warns(UserWarning, match="all pixels are 0 or 1, but 255 is white: multiply by 255"):
        from_arrays(np.eye(4, dtype=kind)[None].repeat(2, 0), [0, 1])
