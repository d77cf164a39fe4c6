"""Labelled images: ImageData, and Splits with a training and a test set."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from condenset.augment import DEFAULT_STRATEGY
from condenset.data.transform import augment_inputs, normalize, normalize_pixels, to_unit_range
from condenset.data.whitening import Whitening
from condenset.errors import UserError, check, check_type, option


@dataclass(frozen=True, kw_only=True)
class WholeDataset:
    """The dataset that consecutive classes were taken from.

    Attributes:
        class_names: The names of all classes.
        class_counts: The number of images of each class.
        first_class: The number of the first class that was taken.
    """

    class_names: tuple[str, ...]
    class_counts: tuple[int, ...]
    first_class: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData(Dataset[tuple[Tensor, Tensor]]):
    """Labelled images: `data[i]` is (image, label), with float32 pixels in 0..1 and an integer label.

    `cs.load`, `cs.from_arrays`, `cs.from_folder` and `cs.from_dataset` return it. They also measure `mean` and `std`.

    Attributes:
        images: (N, C, H, W) uint8, possibly memory-mapped. `data[i]` converts one image to floats.
        labels: (N,) int64 in 0..K-1.
        class_names: K names.
        mean, std: Normalisation constants per channel, for pixels in 0..1.
        name: The name of the dataset. Presets depend on it.
        source: Where the images come from, as text.
        origin: How `cs.load` finds the images again: `dataset`, `data_dir` and load options. Sets made from the images
            record it. Empty: unknown.
        allow_hflip: Allow horizontal flips. False for text and digits.
        stored_fingerprint: The fingerprint, if it was computed before.
        parent_fingerprint: The fingerprint of the images that `train_val_split` divided. Empty: none were divided.
        split_fingerprint: A hash of how `train_val_split` divided them, the same for both parts.
        class_stream_ids: The id of each class's random stream; empty for 0..K-1. Two datasets in which a class has the
            same id use the same random numbers for it.
        file: The .npy file that the images are mapped from, or the images that these were selected from. Empty: the
            images are in memory.
        whole: The dataset that these classes were taken from by `take_classes`. None: this is a whole dataset.
        whitening: ZCA whitening in place of the normalisation. None: images are normalised.

    Raises:
        UserError: The images or labels have a wrong shape, dtype or value.

    Example:
        >>> import torch
        >>> import condenset as cs
        >>> images, labels = torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
        >>> data = cs.ImageData(
        ...     images=images, labels=labels, class_names=("cat", "dog"), mean=(0.5,) * 3, std=(0.2,) * 3, name="pets"
        ... )
        >>> data
        ImageData(pets: 4 images of 3x32x32, 2 classes)
        >>> data.class_counts
        (2, 2)
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = "data"
    source: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)
    allow_hflip: bool = True
    stored_fingerprint: str = ""
    parent_fingerprint: str = ""
    split_fingerprint: str = ""
    class_stream_ids: tuple[int, ...] = ()
    file: str = ""
    whole: WholeDataset | None = None
    whitening: Whitening | None = None

    def __post_init__(self) -> None:
        check_dense("images", self.images)
        check_dense("labels", self.labels)
        object.__setattr__(self, "class_names", check_class_names(self.class_names))
        check_type(self.origin, Mapping, "origin must be a mapping")
        check_type(self.name, str, "name must be text")
        check_type(self.allow_hflip, bool, "allow_hflip must be true or false")
        shape = tuple(self.images.shape)
        check(self.images.dtype == torch.uint8 and len(shape) == 4, "images must be uint8 of shape (N, C, H, W)", shape)
        check(shape[1] in (1, 3), "images must have 1 or 3 channels", shape[1])
        check(shape[2] == shape[3], "images must be square", f"{shape[2]}x{shape[3]}")
        check(tuple(self.labels.shape) == (shape[0],), f"labels must have shape ({shape[0]},)", self.labels.shape)
        check(self.labels.dtype == torch.int64, "labels must be int64", self.labels.dtype)
        check(shape[0] > 0, "there must be at least one image", shape[0])
        low, high = int(self.labels.min()), int(self.labels.max())
        check(low >= 0 and high < self.num_classes, f"labels must be in 0..{self.num_classes - 1}", (low, high))
        check_normalization(self)
        num_ids = len(self.class_stream_ids)
        check(num_ids in (0, self.num_classes), "class_stream_ids must have one id per class, or none", num_ids)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return to_unit_range(self.images[index]), self.labels[index]

    def __repr__(self) -> str:
        return f"ImageData({one_line(self.name)}: {len(self):,} images of {describe_images(self)})"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """Height and width of the images in pixels."""
        return self.images.shape[-1]

    @functools.cached_property
    def class_counts(self) -> tuple[int, ...]:
        """Number of images per class."""
        return tuple(torch.bincount(self.labels, minlength=self.num_classes).tolist())

    @property
    def all_class_names(self) -> tuple[str, ...]:
        """The classes that networks distinguish: those of the whole dataset."""
        return self.whole.class_names if self.whole else self.class_names

    @property
    def first_class(self) -> int:
        """The number of the first class in the whole dataset."""
        return self.whole.first_class if self.whole else 0

    @property
    def largest_class(self) -> int:
        """The number of images of the largest class of the whole dataset."""
        return max(self.whole.class_counts if self.whole else self.class_counts)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of pixels, labels and class names, computed once."""
        if self.stored_fingerprint:
            return self.stored_fingerprint
        return hash_tensors((tuple(self.images.shape), self.class_names), self.labels, self.images)

    def normalized(self) -> Tensor:
        """Return all images as networks expect them: (N, C, H, W) float32, four times the memory of `images`."""
        return normalize(to_unit_range(self.images), self.mean, self.std, self.whitening)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return (pixels - mean) / std, or whitened pixels. Pixels are (N, C, H, W), uint8 or floats in 0..1."""
        return normalize_pixels(pixels, self.mean, self.std, self.whitening)

    def augment(
        self, inputs: Tensor, strategy: str = DEFAULT_STRATEGY, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Augment normalised images as in training. See `CondensedSet.augment`."""
        return augment_inputs(inputs, self.channels, strategy, allow_hflip=self.allow_hflip, generator=generator)


@dataclass(frozen=True)
class Splits:
    """The training and the test images of a dataset, as `cs.load` returns them.

    Attributes:
        train: The images to learn from.
        test: The images to evaluate on. Nothing is learned or selected on them. None: the dataset has no test split.

    Example:
        >>> import condenset as cs
        >>> splits = cs.load("digits", verbose=False)
        >>> len(splits.train), len(splits.test)
        (1433, 364)
    """

    train: ImageData
    test: ImageData | None = None

    def __repr__(self) -> str:
        train, test = self.train, "no" if self.test is None else f"{len(self.test):,}"
        counts = f"{len(train):,} train and {test} test images"
        return f"Splits({one_line(train.name)}: {counts} of {describe_images(train)})"

    def require_test(self) -> ImageData:
        """Return the test images; raise a UserError if there are none."""
        if self.test is None:
            raise UserError(f"{self.train.name} has no test images: {_test_hint()}")
        return self.test


def same_images_error(name: str) -> UserError:
    """Return the error for a dataset whose test split is its training split."""
    return UserError(f"{name}: the test images must differ from the training images, but are the same")


def check_test_differs(splits: Splits) -> None:
    """Check that the test split is not the training split."""
    train, test = splits.train, splits.test
    if test is not None and len(test) == len(train) and test.fingerprint == train.fingerprint:
        raise same_images_error(train.name)


def _test_hint() -> str:
    return f"load the dataset with {option('test', 'PATH')} or {option('test_share', 0.2)}"


def check_dense(name: str, tensor: object) -> None:
    """Check that this is a tensor with one stored number per element."""
    check_type(tensor, Tensor, f"{name} must be a tensor")
    assert isinstance(tensor, Tensor)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise UserError(f"{name} must be a dense tensor, not sparse, quantized, meta or nested: convert it first")


def check_class_names(class_names: object) -> tuple[str, ...]:
    """Check that these can be names, a list and not one text, and return them as text."""
    is_list = isinstance(class_names, Iterable) and not isinstance(class_names, str)
    check(is_list, "class_names must be a list of names", class_names)
    assert isinstance(class_names, Iterable)
    return tuple(map(str, class_names))


def hash_tensors(header: object, *tensors: Tensor) -> str:
    """Return a hash of 16 hex digits of tensors and of a header, such as their shapes."""
    digest = hashlib.sha256(repr(header).encode())
    for tensor in tensors:
        for block in tensor.detach().split(4096):
            digest.update(block.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def check_channel_stats(name: str, values: Any, num_channels: Sequence[int] = (1, 3)) -> tuple[float, ...]:
    """Check a "mean" or "std" and return it as floats, one per channel.

    Args:
        name: "mean" or "std"; a std must be above 0.
        values: A sequence of numbers.
        num_channels: The valid numbers of channels.
    """
    try:
        floats = tuple(math.nan if isinstance(value, str | bool) else float(value) for value in values)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor with several elements
        floats = ()
    in_range = all(math.isfinite(value) and (name == "mean" or value > 0) for value in floats)
    rule = f"{name} must be a number{'' if name == 'mean' else ' above 0'} for each channel"
    check(len(floats) in num_channels and in_range, f"{rule} ({' or '.join(map(str, num_channels))})", values)
    return floats


def check_normalization(data: Any) -> None:
    """Check the fields `mean` and `std` of a frozen dataclass with `images`, and store them as tuples of floats."""
    for name in ("mean", "std"):
        object.__setattr__(data, name, check_channel_stats(name, getattr(data, name), data.images.shape[1:2]))


def check_image_data(name: str, value: object, split: str = "train") -> None:
    """Check that an argument is ImageData."""
    if value is None and split == "test":  # the test split of a dataset that has none
        raise UserError(f"{name} has no images: {_test_hint()}")
    check_type(value, ImageData, f"{name} must be ImageData, such as cs.load('digits').{split}")


def describe_images(data: Any) -> str:
    """Return the image shape and the number of classes, such as `3x32x32, 10 classes`."""
    return f"{'x'.join(map(str, data.images.shape[1:]))}, {data.num_classes} classes"


def one_line(value: object) -> str:
    """Return a value as text without line breaks; names in files can contain anything."""
    return " ".join(str(value).split())
