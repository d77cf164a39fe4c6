"""scikit-learn interface: `Condenser.fit_resample` condenses arrays, as samplers of imbalanced-learn do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from condenset.data.image_data import ImageData
from condenset.data.reading.arrays import from_arrays
from condenset.errors import UserError, check, is_int, warn_user
from condenset.pipeline.api import condense

MAX_SEED = 2**31 - 1


class Condenser(BaseEstimator):  # type: ignore[misc]
    """Replace a training set by a few synthetic samples per class.

    Use it like a sampler of imbalanced-learn, alone or in an `imblearn.pipeline.Pipeline`. Values are stored in 256
    steps between the smallest and the largest value of X, and integers in 0..255 exactly. Features of different ranges
    lose their small differences, with a warning if one becomes constant: scale them first, for example with
    `sklearn.preprocessing.MinMaxScaler`.

    Args:
        method: Name of a method, see `condenset.METHODS`.
        ipc: Samples per class. A class with fewer samples keeps them all.
        image_shape: Shape of a sample of a flat X: (H, W), (C, H, W) or (H, W, C). None: a square grey image, or a
            square colour image in the order (3, S, S), if the number of features allows it. Give (S, S, 3) for images
            of that order that were flattened. Other numbers are padded with constant features, which suits methods and
            networks that do not use the positions of pixels, such as `random`, `mmd` and `mlp`.
        allow_hflip: Augment with horizontal flips. Leave it off for text, digits and features that are not images.
        device: "cpu", "cuda" or "mps". None: the fastest one available.
        options: Fields of the recipe of the method, such as {"iterations": 500}.
        random_state: Seed: a number, a `numpy.random.RandomState` or None. The same number gives the same samples.
        verbose: Show progress.

    Attributes:
        condensed_: The `CondensedSet`.
        classes_: The classes, sorted.
        n_features_in_: Number of features of a flat X.
        feature_names_in_: Names of the features, if X has them.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from condenset.sklearn import Condenser
        >>> X, y = load_digits(return_X_y=True)
        >>> X_small, y_small = Condenser("random", ipc=10, random_state=0).fit_resample(X, y)
        >>> X_small.shape, y_small.shape
        ((100, 64), (100,))
    """

    def __init__(
        self,
        method: str = "dm",
        *,
        ipc: int = 10,
        image_shape: Sequence[int] | None = None,
        allow_hflip: bool = False,
        device: str | None = None,
        options: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.ipc = ipc
        self.image_shape = image_shape
        self.allow_hflip = allow_hflip
        self.device = device
        self.options = options
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Condense a training set.

        Args:
            X: (N, features), or images (N, H, W), (N, H, W, C) or (N, C, H, W).
            y: (N,) classes: numbers or text.

        Returns:
            The condenser, with the set in `condensed_`.
        """
        self.fit_resample(X, y)
        return self

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, NDArray[Any]]:
        """Condense a training set and return the samples.

        Args:
            X: (N, features), or images (N, H, W), (N, H, W, C) or (N, C, H, W).
            y: (N,) classes: numbers or text.

        Returns:
            Samples with the features or the image shape and the dtype of X, and their classes.
        """
        values, classes = self._check_inputs(X, y)
        self.classes_, labels = np.unique(classes, return_inverse=True)
        shape = _image_shape(values.shape[1:], self.image_shape)
        scale = _Scale(values)
        names = list(map(str, range(len(self.classes_))))
        pixels = scale.to_pixels(values)
        if values.ndim == 2:
            _warn_about_lost_features(values, pixels)
        data = _make_data(pixels, labels, shape, names, allow_hflip=self.allow_hflip)
        seed = self.random_state
        if not is_int(seed):
            seed = int(check_random_state(seed).randint(MAX_SEED))
        self.condensed_ = condense(
            data,
            self.method,
            ipc=self.ipc,
            seed=seed,  # type: ignore[arg-type]
            device=self.device,
            verbose=self.verbose,
            **{"allow_fewer": True, **(self.options or {})},
        )
        check(self.condensed_.labels.ndim == 1, "the method must have hard labels", self.method)
        samples = scale.from_pixels(_from_images(self.condensed_.images.numpy(), shape, values.shape[1:]))
        return _like(X, samples), self.classes_[self.condensed_.labels.numpy()]

    def _check_inputs(self, X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return X and y as arrays, and record the number and the names of the features."""
        if np.ndim(X) > 2:
            values, classes = check_array(X, allow_nd=True, dtype="numeric"), column_or_1d(y, warn=True)
            check_consistent_length(values, classes)
        else:
            values, classes = validate_data(self, X, y, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(classes)
        return values, classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        return tags


class _Scale:
    """Map values to uint8 pixels and back. Integers in 0..255 stay as they are."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.dtype, self.low, self.range = values.dtype, float(values.min()), float(np.ptp(values.astype(np.float64)))
        if values.dtype.kind in "iu" and self.low >= 0 and self.low + self.range <= 255:
            self.low, self.range = 0.0, 255.0
        self.range = self.range or 1.0
        check(math.isfinite(self.range), "the range of X must be a float", self.range)

    def to_pixels(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        pixels: NDArray[np.uint8] = ((values.astype(np.float64) - self.low) / self.range * 255).round().astype(np.uint8)
        return pixels

    def from_pixels(self, unit_values: NDArray[Any]) -> NDArray[Any]:
        """Return values in the dtype of X; whole numbers and bools are rounded and limited to their range."""
        values = unit_values.astype(np.float64) * self.range + self.low
        if self.dtype.kind in "iub":
            values = values.round().clip(self.low, self.low + self.range)
        result: NDArray[Any] = values.astype(self.dtype)
        return result


def _warn_about_lost_features(values: NDArray[Any], pixels: NDArray[np.uint8]) -> None:
    """Warn if features of a flat X differ, but less than a step of the pixels."""
    num_lost = int(np.count_nonzero((np.ptp(pixels, 0) == 0) & (values != values[0]).any(0)))
    if num_lost:
        warn_user(
            f"{num_lost} of {values.shape[1]} features become constant, because X is stored in 256 steps between its "
            "smallest and its largest value: scale the features first, for example with MinMaxScaler"
        )


def _image_shape(sample_shape: tuple[int, ...], image_shape: Sequence[int] | None) -> tuple[int, ...]:
    """Return the shape of the images: that of X, the one that the user gives, or that of a square image."""
    if len(sample_shape) > 1:
        rule = f"image_shape must be None or {sample_shape}, the shape of the samples"
        check(image_shape is None or tuple(image_shape) == sample_shape, rule, image_shape)
        return sample_shape
    (num_features,) = sample_shape
    if image_shape is not None:
        is_shape = not is_int(image_shape) and len(image_shape) in (2, 3) and all(map(is_int, image_shape))
        rule = f"image_shape must be (H, W), (C, H, W) or (H, W, C) with {num_features} values"
        check(is_shape and math.prod(image_shape) == num_features, rule, image_shape)
        return tuple(image_shape)
    side = math.isqrt(num_features // 3)
    if 3 * side**2 == num_features and side > 1:
        return 3, side, side
    side = math.isqrt(num_features - 1) + 1
    return side, side


def _make_data(
    pixels: NDArray[np.uint8], labels: NDArray[Any], shape: tuple[int, ...], names: list[str], *, allow_hflip: bool
) -> ImageData:
    flat = pixels.reshape(len(pixels), -1)
    padded = np.pad(flat, ((0, 0), (0, math.prod(shape) - flat.shape[1])))
    try:
        return from_arrays(padded.reshape(-1, *shape), labels, class_names=names, name="X", allow_hflip=allow_hflip)
    except UserError as error:
        raise UserError(f"X must contain square images of 1 or 3 channels, but {error}") from None


def _from_images(images_NCHW: NDArray[Any], shape: tuple[int, ...], sample_shape: tuple[int, ...]) -> NDArray[Any]:
    """Return images in the shape of the samples of X, without padded features."""
    is_channels_first = len(shape) == 2 or shape == images_NCHW.shape[1:]
    images = images_NCHW if is_channels_first else images_NCHW.transpose(0, 2, 3, 1)
    return images.reshape(len(images), -1)[:, : math.prod(sample_shape)].reshape(-1, *sample_shape)


def _like(X: Any, samples: NDArray[Any]) -> Any:
    """Return samples as a data frame if X is one."""
    return type(X)(samples, columns=X.columns) if hasattr(X, "iloc") else samples
