"""What flows between the rooms: ImageData -> CondensedSet -> Scores."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from condenset.errors import UserError, check, check_kind, listed
from condenset.files import read_tensors, write_tensors
from condenset.folders import writable

FORMAT = 1  # of the CondensedSet file


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData:
    """Labelled images as they came: uint8 pixels, one integer label each.

    images: (N, C, H, W) uint8, may be memory-mapped; labels: (N,) int64 in 0..K-1; mean, std: per channel, of pixels
    in 0..1; can_flip: whether a mirrored image keeps its label (no for digits); class_rows: what random draws know the
    classes by, () for 0..K-1: a class that keeps its own among other classes keeps its draws.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = "data"
    source: str = ""
    can_flip: bool = True
    known_fingerprint: str = ""
    class_rows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        check(self.images.dtype == torch.uint8 and len(shape) == 4, "images must be uint8 of shape (N, C, H, W)", shape)
        check(shape[1] in (1, 3), "images must have 1 or 3 channels", shape[1])
        check(shape[2] == shape[3], "images must be square", f"{shape[2]}x{shape[3]}")
        check(tuple(self.labels.shape) == (shape[0],), f"labels must have shape ({shape[0]},)", self.labels.shape)
        check(self.labels.dtype == torch.int64, "labels must be int64", self.labels.dtype)
        check(shape[0] > 0, "there must be at least one image", shape[0])
        low, high = int(self.labels.min()), int(self.labels.max())
        check(low >= 0 and high < self.num_classes, f"labels must lie in 0..{self.num_classes - 1}", (low, high))
        _take_constants(self)
        rows = len(self.class_rows)
        check(rows in (0, self.num_classes), "class_rows must have a number for each class, or none", rows)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageData({_one_line(self.name)}: {len(self):,} images of {_held(self)})"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """The side of the square images."""
        return self.images.shape[-1]

    @functools.cached_property
    def class_counts(self) -> tuple[int, ...]:
        return tuple(torch.bincount(self.labels, minlength=self.num_classes).tolist())

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of pixels, labels and class names: which data a set was made from."""
        if self.known_fingerprint:
            return self.known_fingerprint
        return _fingerprint((tuple(self.images.shape), self.class_names), self.labels, self.images)


def _fingerprint(about: object, *tensors: Tensor) -> str:
    digest = hashlib.sha256(repr(about).encode())
    for tensor in tensors:
        for part in tensor.detach().split(4096):
            digest.update(part.cpu().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def of_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """The images of these classes, labelled by their places in `names`; refused where there is none."""
    place = {name: number for number, name in enumerate(names)}
    labels = torch.tensor([place.get(name, -1) for name in data.class_names])[data.labels]
    chosen = labels >= 0
    if not bool(chosen.any()):
        raise UserError(f"no image of {data.name} is of one of the classes {listed(names, 3)}")
    everything = bool(chosen.all())
    return dataclasses.replace(
        data,
        images=data.images if everything else data.images[chosen],
        labels=labels if everything else labels[chosen],
        class_names=tuple(names),
        known_fingerprint=data.known_fingerprint if tuple(names) == data.class_names else "",
        class_rows=(),
    )


@dataclass(frozen=True)
class Splits:
    """A dataset's two halves; nothing is ever learned or selected on `test`."""

    train: ImageData
    test: ImageData

    def __repr__(self) -> str:
        train, counts = self.train, f"{len(self.train):,} train and {len(self.test):,} test"
        return f"Splits({_one_line(train.name)}: {counts} images of {_held(train)})"


@dataclass(frozen=True, kw_only=True, eq=False)
class CondensedSet(Dataset[tuple[Tensor, Tensor]]):
    """A small training set: `set[i]` is (image, label), the image in pixel space.

    images: (N, C, H, W) float32, nominally 0..1 but free to overshoot; labels: (N,) int64, or (N, K) float32 when
    they are soft; networks expect (images - mean) / std, which `normalised()` gives; step_sizes: (T,) float32, those
    of the gradient-descent steps that a method learned with the images, or None.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    step_sizes: Tensor | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        images, labels, num_classes = self.images, self.labels, len(self.class_names)
        check(images.dtype == torch.float32, "images must be float32", images.dtype)
        check(images.ndim == 4 and images.shape[1] in (1, 3), "images must be (N, 1 or 3, H, W)", tuple(images.shape))
        check(images.shape[2] == images.shape[3], "images must be square", f"{images.shape[2]}x{images.shape[3]}")
        check(len(images) > 0, "a set must hold at least one image", len(images))
        check(min(images.shape[2:]) > 0, "images must have at least a pixel", tuple(images.shape))
        check(num_classes > 0, "a set must have at least one class", num_classes)
        check(isinstance(self.provenance.get("recipe", {}), Mapping), "a recipe must be a table", "something else")
        check(bool(torch.isfinite(images).all()), "images must be finite", "NaN or infinity")
        check(len(labels) == len(images), f"labels must number {len(images)}", len(labels))
        if labels.ndim == 1:
            check(labels.dtype == torch.int64, "hard labels must be int64", labels.dtype)
            inside = bool(((labels >= 0) & (labels < num_classes)).all())
            check(inside, f"hard labels must lie in 0..{num_classes - 1}", sorted(set(labels.tolist())))
        else:
            check(labels.shape == (len(images), num_classes), "soft labels must be (images, classes)", labels.shape)
            check(labels.dtype == torch.float32, "soft labels must be float32", labels.dtype)
            check(bool(torch.isfinite(labels).all()), "soft labels must be finite", "NaN or infinity")
        _take_constants(self)
        if (steps := self.step_sizes) is not None:
            listed = steps.ndim == 1 and len(steps) > 0 and steps.dtype == torch.float32
            check(listed, "step sizes must be a list of float32", f"{steps.dtype} of shape {tuple(steps.shape)}")
            check(bool((steps.isfinite() & (steps > 0)).all()), "step sizes must be above 0", steps.tolist())

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        about, ipc = self.provenance, self.provenance.get("recipe", {}).get("ipc")
        name = f"{_one_line(about['dataset'])}: " if "dataset" in about else ""
        made = [_one_line(about["method"])] if "method" in about else []
        made += [f"{_one_line(ipc)} a class"] if ipc is not None else []
        told = f"; {', '.join(made)}" if made else ""
        return f"CondensedSet({name}{len(self):,} images of {_held(self)}{told})"

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def can_flip(self) -> bool:
        """Whether a mirrored image keeps its label, as the source data said."""
        return bool(self.provenance.get("can_flip", True))

    @property
    def fingerprint(self) -> str:
        """A hash of all that is learned; that of the data a set was made from is in its provenance."""
        steps = () if self.step_sizes is None else (self.step_sizes,)
        return _fingerprint(tuple(self.images.shape), self.labels, self.images, *steps)

    def normalised(self) -> Tensor:
        """The images as networks expect them: (images - mean) / std."""
        return normalise(self.images, self.mean, self.std)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write one .safetensors file, whole or not at all."""
        meta = {
            "format": FORMAT,
            "class_names": list(self.class_names),
            "mean": list(self.mean),
            "std": list(self.std),
            "provenance": dict(self.provenance),
        }
        if not overwrite and Path(path).exists():
            raise UserError(f"{path} exists already; choose another name or overwrite it with overwrite=True")
        tensors = {"images": self.images, "labels": self.labels}
        if self.step_sizes is not None:
            tensors["step_sizes"] = self.step_sizes
        with writable(Path(path)):
            write_tensors(path, tensors, {"condenset": json.dumps(meta)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CondensedSet:
        """Read a set file; anything but a whole, consistent one is refused."""
        tensors, metadata = read_tensors(path)
        try:
            meta = json.loads(metadata["condenset"])
            if meta["format"] > FORMAT:
                raise UserError(f"it was written by a newer condenset (format {meta['format']}); upgrade to read it")
            return cls(
                images=tensors["images"].clone(),
                labels=tensors["labels"].clone(),
                class_names=tuple(map(str, meta["class_names"])),
                mean=meta["mean"],
                std=meta["std"],
                step_sizes=tensors["step_sizes"].clone() if "step_sizes" in tensors else None,
                provenance=dict(meta["provenance"]),
            )
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a set of condenset: {type(error).__name__} in its metadata") from None


def constants(what: str, values: Any, channels: Sequence[int] = (1, 3)) -> tuple[float, ...]:
    """The mean or std of each channel as floats; channels: how many there may be of them."""
    try:
        found = tuple(math.nan if isinstance(value, str | bool) else float(value) for value in values)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: of a tensor of several numbers
        found = ()
    fits = len(found) in channels and all(math.isfinite(value) and (what == "mean" or value > 0) for value in found)
    rule = f"{what} must be a number{'' if what == 'mean' else ' above 0'} for each channel"
    check(fits, f"{rule} ({' or '.join(map(str, channels))})", values)
    return found


def _take_constants(images: ImageData | CondensedSet) -> None:
    """Check and keep the mean and std that were given with the images."""
    for what in ("mean", "std"):
        object.__setattr__(images, what, constants(what, getattr(images, what), images.images.shape[1:2]))


def check_data(name: str, value: object, split: str = "train") -> None:
    """Refuse what is not ImageData."""
    check_kind(value, ImageData, f"{name} must be ImageData, such as cs.load('digits').{split}")


def check_set(value: object) -> None:
    """Refuse what is not a set to train on."""
    rule = "the set must be a CondensedSet, such as cs.condense or cs.CondensedSet.load gives, or ImageData"
    check_kind(value, (CondensedSet, ImageData), rule)


def _held(images: ImageData | CondensedSet) -> str:
    return f"{'x'.join(map(str, images.images.shape[1:]))}, {images.num_classes} classes"


def _one_line(value: object) -> str:
    return " ".join(str(value).split())  # a name in somebody's file may be anything


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Test accuracies, as fractions, of the networks trained on one set under one protocol."""

    accuracies: tuple[float, ...]
    network: str
    protocol: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def std(self) -> float:
        """The population standard deviation, as the paper's tables give it."""
        return math.sqrt(sum((a - self.mean) ** 2 for a in self.accuracies) / len(self.accuracies))

    def __str__(self) -> str:
        record = {"accuracies": self.accuracies, "accuracy_mean": self.mean, "accuracy_std": self.std}
        return f"{percent(record)} ({len(self.accuracies)} × {self.network})"


def percent(record: Mapping[str, Any]) -> str:
    """The accuracies of a record as `63.0 ± 0.4`, or `63.0` of a single network, which has no spread."""
    spread = f" ± {100 * record['accuracy_std']:.1f}" if len(record["accuracies"]) > 1 else ""
    return f"{100 * record['accuracy_mean']:.1f}{spread}"


def normalise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(pixels - mean) / std over the channels of (..., C, H, W) pixels in 0..1."""
    mean_C11, std_C11 = (torch.tensor(v, dtype=pixels.dtype, device=pixels.device)[:, None, None] for v in (mean, std))
    return (pixels - mean_C11) / std_C11


def denormalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """The inverse of `normalise`: pixels, nominally in 0..1."""
    mean_C11, std_C11 = (torch.tensor(v, dtype=images.dtype, device=images.device)[:, None, None] for v in (mean, std))
    return images * std_C11 + mean_C11
