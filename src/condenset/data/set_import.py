"""Import condensed sets of other programs: `condenset.import_set`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from condenset.data.condensed_set import CondensedSet
from condenset.data.datasets.sources import DATASETS, require_registered_name
from condenset.data.formats.content import SET_FILE, SetContent, is_exported
from condenset.data.formats.npz import read_npz
from condenset.data.formats.pt import read_pt
from condenset.data.formats.table import find_format
from condenset.data.image_data import check_channel_stats
from condenset.data.transform import denormalize
from condenset.errors import UserError, check, check_path, option, warn_user
from condenset.io.user_directories import expand_user

NONE = "none"  # normalisation of images that are stored as pixels in 0..1
MAX_CLASSES = 1_000_000  # of a file without class names, which have to be made
MAX_LABEL_ERROR = 2e-3  # of the sum of soft labels, for the rounding of bfloat16
PIXEL_RANGE, MAX_SHARE_OUTSIDE = (-1.0, 2.0), 0.01  # beyond it, the normalisation is probably wrong


def import_set(
    *paths: str | os.PathLike[str],
    normalization: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dataset: str | None = None,
    index: int | None = None,
) -> CondensedSet:
    """Read a condensed set that another program wrote, or that `CondensedSet.to_*` exported. No code in it is run.

    Sets that condenset exported contain their normalisation. For other files, give it explicitly: `normalization`, or
    `mean` and `std`. The images in .pt files are normalised with it.

    Args:
        paths: One file (.pt, .pth, .npz) or exported directory; or a .pt file with images and one with labels.
        normalization: Name of the dataset whose constants were used, such as "cifar10", or "none" for pixels in 0..1.
        mean: Mean per channel, in place of `normalization`.
        std: Standard deviation per channel, together with `mean`.
        dataset: Name of the dataset that the set was made from. `condenset evaluate` tests on it by default.
        index: Which set of a .pt file with several, from 0.

    Returns:
        The set, with all tensors on the CPU.

    Raises:
        UserError: A file is damaged, contains something else, or has no normalisation.

    Example:
        >>> import pathlib, tempfile
        >>> import torch
        >>> import condenset as cs
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "published.pt"
        >>> torch.save({"data": [[torch.randn(20, 3, 32, 32), torch.arange(10).repeat(2)]]}, path)
        >>> cs.import_set(path, normalization="cifar10", dataset="cifar10")
        CondensedSet(cifar10: 20 images of 3x32x32, 10 classes)
    """
    check(len(paths) > 0, "import_set needs at least one path", paths)
    for path in paths:
        check_path("path", path)
    files = [expand_user(path) for path in paths]
    content = _read(files, index)
    constants = _choose_normalization(content, files[0], normalization, mean, std)
    try:
        condensed = content if isinstance(content, CondensedSet) else _build_set(content, files[0], *constants, dataset)
        return _add_dataset(condensed, dataset)
    except UserError as error:
        raise UserError(f"{files[0]}: {error}") from None


def _read(files: Sequence[Path], index: int | None) -> SetContent | CondensedSet:
    names = {find_format(path) for path in files}
    if names == {"pt"}:
        return read_pt(files, index)
    if len(files) > 1:
        raise UserError(f"only .pt files can be divided into images and labels, but got {len(files)} paths")
    check(index is None, f"{option('index')} is for .pt files", index)
    if names == {"npz"}:
        return read_npz(files[0])
    path = files[0] / SET_FILE
    if not path.is_file():
        if is_exported(files[0]):
            raise UserError(f"{files[0]} was exported by an older version: export the set again")
        raise UserError(f"{files[0]} is not an exported set: it has no {SET_FILE}")
    return CondensedSet.load(path)


def _choose_normalization(
    content: SetContent | CondensedSet,
    file: Path,
    normalization: str | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std: those in the file, else those that the user gives."""
    if content.mean is not None and content.std is not None:
        values = {"normalization": normalization, "mean": mean, "std": std}
        if names := [option(name, value) for name, value in values.items() if value is not None]:
            raise UserError(f"{file} contains its normalisation: leave out {' and '.join(names)}")
        return check_channel_stats("mean", content.mean), check_channel_stats("std", content.std)
    if normalization is None:
        if mean is None or std is None:
            raise UserError(f"{file} does not contain its normalisation: give {_options(' or ')}")
        return check_channel_stats("mean", mean), check_channel_stats("std", std)
    if mean is not None or std is not None:
        raise UserError(f"{_options(' and ')} exclude each other: give one of the two")
    num_channels = content.images.shape[1] if content.images.ndim == 4 else 1
    if normalization == NONE:
        return (0.0,) * num_channels, (1.0,) * num_channels
    source = DATASETS[require_registered_name(normalization)]
    if source.mean is None or source.std is None:
        raise UserError(
            f"the dataset {source.name} has no fixed normalisation: give {option('mean')} and {option('std')}"
        )
    return source.mean, source.std


def _options(separator: str) -> str:
    return separator.join((option("normalization", "cifar10"), f"{option('mean')} with {option('std')}"))


def _build_set(
    content: SetContent, file: Path, mean: tuple[float, ...], std: tuple[float, ...], dataset: str | None
) -> CondensedSet:
    source = None if dataset is None else DATASETS[require_registered_name(dataset)]
    images, labels = torch.from_numpy(_to_float_images(content)), torch.from_numpy(_to_labels(content.labels))
    check(images.ndim == 4, "images must be (N, 1 or 3, H, W)", tuple(images.shape))
    check_channel_stats("mean", mean, images.shape[1:2])
    check_channel_stats("std", std, images.shape[1:2])
    if content.is_normalized:
        images = denormalize(images, mean, std)
    if content.mean is None:
        _warn_about_range(images, file)
    names = tuple(content.class_names or ())
    if content.class_names is None:
        num_classes = labels.shape[1] if labels.ndim == 2 else int(labels.max()) + 1 if len(labels) else 0
        check(num_classes <= MAX_CLASSES, f"labels must be class indices less than {MAX_CLASSES}", num_classes - 1)
        names = tuple(map(str, range(max(num_classes, source.num_classes if source else 0))))
    provenance = dict(content.provenance) or {"source": file.name}
    steps = None if content.step_sizes is None else _to_step_sizes(content.step_sizes)
    condensed = CondensedSet(
        images=images, labels=labels, class_names=names, mean=mean, std=std, step_sizes=steps, provenance=provenance
    )
    if labels.ndim == 2:
        _check_label_sums(labels)
    return condensed


def _add_dataset(condensed: CondensedSet, dataset: str | None) -> CondensedSet:
    """Return a set whose provenance names the dataset that it was made from."""
    if dataset is None:
        return condensed
    source = DATASETS[require_registered_name(dataset)]
    num = condensed.num_classes
    check(num == source.num_classes, f"{source.name} has {source.num_classes} classes", num)
    fields = {"dataset": source.name, "allow_hflip": source.allow_hflip}
    return dataclasses.replace(condensed, provenance={**condensed.provenance, **fields})


def _to_float_images(content: SetContent) -> NDArray[np.float32]:
    images = content.images
    if images.dtype == np.uint8:
        return images.astype(np.float32) / np.float32(255)
    check(images.dtype.kind == "f", "images must be floats or uint8", str(images.dtype))
    with np.errstate(over="ignore"):  # infinity is refused later
        return np.ascontiguousarray(images, np.float32)


def _to_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Return class indices as int64 and soft labels as float32."""
    check(labels.ndim in (1, 2), "labels must be (N,) class indices or (N, K) soft labels", labels.shape)
    kind = "f" if labels.ndim == 2 else "iu"
    rule = "soft labels must be floats" if labels.ndim == 2 else "hard labels must be whole numbers"
    check(labels.dtype.kind in kind, rule, str(labels.dtype))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(labels, np.float32 if labels.ndim == 2 else np.int64)


def _check_label_sums(labels_NK: torch.Tensor) -> None:
    """Raise a UserError unless the soft labels of every image sum to 1. The sum is the weight of the image."""
    sums_N = labels_NK.double().sum(1)
    worst = float(sums_N[(sums_N - 1).abs().argmax()])
    rule = "soft labels must be probabilities, which sum to 1 for each image"
    check(abs(worst - 1) <= MAX_LABEL_ERROR, rule, round(worst, 4))


def _to_step_sizes(values: Sequence[Any]) -> torch.Tensor:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise UserError("step_sizes must be a list of numbers") from None


def _warn_about_range(images: torch.Tensor, file: Path) -> None:
    """Warn if many pixels are far outside 0..1."""
    low, high = PIXEL_RANGE
    if float(((images < low) | (images > high)).float().mean()) > MAX_SHARE_OUTSIDE:
        values = f"{float(images.min()):.3g} to {float(images.max()):.3g}"
        warn_user(f"the pixels of {file} are {values}, far from 0 to 1: check the normalisation")
