"""`Condenser`: the estimator checks of scikit-learn, and what `fit_resample` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import condenset as cs
from condenset.sklearn import Condenser

QUICK = {"iterations": 2, "network": "convnet(width=8, depth=1)"}


# All checks that apply are passed: none is declared an expected failure.
@parametrize_with_checks([Condenser("random", ipc=1, device="cpu")])
def test_estimator_checks(estimator: Condenser, check: Callable[[Condenser], None]) -> None:
    check(estimator)


def test_digits() -> None:
    X, y = load_digits(return_X_y=True)
    condenser = Condenser("random", ipc=20, random_state=1)
    X_small, y_small = condenser.fit_resample(X, y)
    assert (X_small.shape, X_small.dtype) == ((200, 64), X.dtype)
    assert np.bincount(y_small).tolist() == [20] * 10
    assert X_small.min() >= 0 and X_small.max() <= 16
    assert np.abs(X_small[0] - X[y == 0]).max(1).min() <= 16 / 255  # a real image
    assert LogisticRegression(max_iter=1000).fit(X_small, y_small).score(X, y) > 0.8
    again, _ = clone(condenser).fit_resample(X, y)
    np.testing.assert_array_equal(again, X_small)
    other, _ = clone(condenser).set_params(random_state=2).fit_resample(X, y)
    assert not np.array_equal(other, X_small)


def test_learned_samples_are_those_of_condense() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 192), np.uint8)
    y = np.repeat(["a", "b", "c"], 10)
    condenser = Condenser("dm", ipc=2, options=QUICK, device="cpu")
    X_small, y_small = condenser.fit_resample(pixels, y)
    assert y_small.tolist() == ["a", "a", "b", "b", "c", "c"]
    data = cs.from_arrays(pixels.reshape(-1, 3, 8, 8), y, allow_hflip=False)
    condensed = cs.condense(data, "dm", ipc=2, device="cpu", verbose=False, **QUICK)  # type: ignore[arg-type]
    expected = (condensed.images.double() * 255).round().clamp(0, 255).numpy().reshape(6, 192)
    np.testing.assert_array_equal(X_small, expected.astype(np.uint8))
    assert len(condenser.condensed_) == 6


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (3, 4, 4), (4, 4, 1)])
def test_images_keep_their_shape(shape: tuple[int, ...]) -> None:
    X = np.random.default_rng(0).integers(0, 256, (8, *shape))
    y = np.arange(8) % 2
    X_small, y_small = Condenser("random", ipc=2).fit_resample(X, y)
    assert X_small.shape == (4, *shape)
    for image, label in zip(X_small, y_small, strict=True):
        assert any(np.array_equal(image, real) for real in X[y == label])
    flat, _ = Condenser("random", ipc=2, image_shape=shape).fit_resample(X.reshape(8, -1), y)
    np.testing.assert_array_equal(flat, X_small.reshape(4, -1))


def test_flat_colour_images_are_channels_first_unless_image_shape_is_given() -> None:
    X = np.zeros((4, 8, 8, 3), np.uint8)
    X[..., 0] = 255
    for image_shape, means in (((8, 8, 3), [1, 0, 0]), (None, [1 / 3] * 3)):
        condenser = Condenser("random", ipc=1, image_shape=image_shape)
        condenser.fit_resample(X.reshape(4, -1), [0, 1, 0, 1])
        np.testing.assert_allclose(condenser.condensed_.images.mean((0, 2, 3)), means, atol=0.02)


def test_learned_bools_are_rounded() -> None:
    X = np.random.default_rng(0).random((20, 16)) < 0.3
    X_small, _ = Condenser("dm", ipc=2, options=QUICK, device="cpu").fit_resample(X, np.arange(20) % 2)
    assert X_small.dtype == np.bool_ and 0.1 < X_small.mean() < 0.5


def test_other_numbers_of_features_are_padded() -> None:
    X = np.random.default_rng(0).normal(size=(8, 7)).astype(np.float32)
    X_small, _ = Condenser("random", ipc=1).fit_resample(X, np.arange(8) % 2)
    assert (X_small.shape, X_small.dtype) == ((2, 7), np.float32)
    assert np.abs(X_small[0] - X[::2]).max(1).min() <= np.ptp(X) / 255


def test_features_that_become_constant_give_a_warning() -> None:
    generator = np.random.default_rng(0)
    X = generator.random((20, 4)) * [1000, 1, 0.1, 0]  # the last feature is constant in X
    y = np.arange(20) % 2
    with pytest.warns(UserWarning, match="^2 of 4 features become constant, .* with MinMaxScaler$") as warned:
        X_small, _ = Condenser("random", ipc=5).fit_resample(X, y)
    assert len(warned) == 1
    assert (np.ptp(X_small, 0) == 0).tolist() == [False, True, True, True]
    X_small, _ = Condenser("random", ipc=5).fit_resample(MinMaxScaler().fit_transform(X), y)  # no warning
    assert (np.ptp(X_small, 0) == 0).tolist() == [False, False, False, True]


def test_data_frames_stay_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(np.arange(16.0).reshape(4, 4), columns=list("wxyz"))
    condenser = Condenser("random", ipc=1)
    X_small, _ = condenser.fit_resample(X, [0, 0, 1, 1])
    assert list(X_small.columns) == list("wxyz") and len(X_small) == 2
    assert condenser.feature_names_in_.tolist() == list("wxyz")


@pytest.mark.parametrize(
    ("X", "fields", "message"),
    [
        (np.zeros((4, 12)), {"image_shape": (3, 3)}, r"image_shape must be \(H, W\).*with 12 values, but got \(3, 3\)"),
        (np.zeros((4, 12)), {"image_shape": (3, 4)}, "X must contain square images of 1 or 3 channels"),
        (np.zeros((4, 16)), {"image_shape": 4}, r"image_shape must be \(H, W\).*with 16 values, but got 4"),
        (np.zeros((4, 2, 2)), {"image_shape": (4,)}, r"image_shape must be None or \(2, 2\)"),
        (np.zeros((4, 4)), {"method": "dn"}, "method must be one of"),
        (np.zeros((4, 4)), {"ipc": 0}, "must be a whole number, 1 or more"),
        (np.zeros((4, 4)), {"options": {"iteration": 3}}, "iteration"),
    ],
)
def test_mistakes(X: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Condenser(**{"method": "random", **fields}).fit_resample(X, [0, 0, 1, 1])


def test_soft_labels_are_refused() -> None:
    condenser = Condenser("ld", ipc=1, options=QUICK, device="cpu")
    with pytest.raises(ValueError, match="the method must have hard labels, but got 'ld'"):
        condenser.fit_resample(np.random.default_rng(0).random((8, 64)), np.arange(8) % 2)
