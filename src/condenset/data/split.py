"""Split training images into images to learn on and images to validate on."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, check_image_data, hash_tensors
from condenset.engine import rng
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check, check_int, is_number

Overlap = Literal["", "may contain", "contain"]  # what test images do with training images, as in messages


@torch_defaults()
def train_val_split(data: ImageData, val_share: float = 0.1, *, seed: int = 0) -> tuple[ImageData, ImageData]:
    """Split images at random into a training and a validation part, class by class.

    Args:
        data: The images, usually `cs.load(...).train`.
        val_share: The share of each class for validation; at least one image per class.
        seed: Seed of the random selection.

    Returns:
        (train, val). Both have all classes, and the images are in the order of `data`.

    Raises:
        UserError: A class has only one image, or `val_share` is not between 0 and 1.

    Example:
        >>> import condenset as cs
        >>> train, val = cs.train_val_split(cs.load("digits", verbose=False).train, 0.2)
        >>> len(train), len(val)
        (1146, 287)
    """
    check_image_data("data", data)
    seed = check_int("seed", seed)
    check(is_number(val_share) and 0 < val_share < 1, "val_share must be a number between 0 and 1", val_share)
    val_indices: list[Tensor] = []
    for label, (name, count) in enumerate(zip(data.class_names, data.class_counts, strict=True)):
        if count == 0:
            continue
        if count == 1:
            raise UserError(f"class {name!r} has one image, so it cannot be split into training and validation images")
        num = min(max(round(val_share * count), 1), count - 1)
        selected = rng.permutation(rng.make_key(seed, "split off", label), 0, count)[:num]
        val_indices.append((data.labels == label).nonzero()[:, 0][selected])
    is_val = torch.zeros(len(data), dtype=torch.bool)
    is_val[torch.cat(val_indices)] = True
    split_fingerprint = hash_tensors(data.fingerprint, is_val)
    train, val = (_select_images(data, is_part.nonzero()[:, 0], split_fingerprint) for is_part in (~is_val, is_val))
    return train, val


def describe_overlap(train_set: CondensedSet | ImageData, test: ImageData) -> Overlap:
    """Find out by fingerprints whether test images are training images, or those that a set was made from.

    Returns:
        "contain" if the images are the same, or if `train_val_split` divided one side and the other is a part; "may
        contain" for two parts that are not known to be from the same call of `train_val_split`; else "".
    """
    if isinstance(train_set, CondensedSet):
        names = ("fingerprint", "parent_fingerprint", "split_fingerprint")
        fingerprint, parent, split = (train_set.provenance.get(name, "") for name in names)
    else:
        fingerprint, parent = train_set.fingerprint, train_set.parent_fingerprint
        split = train_set.split_fingerprint
    is_same_or_part = bool(fingerprint) and fingerprint in (test.fingerprint, test.parent_fingerprint)
    if is_same_or_part or parent == test.fingerprint:
        return "contain"
    is_other_split = bool(parent) and parent == test.parent_fingerprint and split != test.split_fingerprint
    return "may contain" if is_other_split else ""


def is_subset_source(source: str) -> bool:
    """Return whether the `source` of ImageData says that it is a part made by `train_val_split`."""
    return re.search(r"\d+ of its \d+ images$", source) is not None


def _select_images(data: ImageData, indices: Tensor, split_fingerprint: str) -> ImageData:
    source = f"{data.source}; {len(indices)} of its {len(data)} images".removeprefix("; ")
    return dataclasses.replace(
        data,
        images=data.images[indices],
        labels=data.labels[indices],
        source=source,
        stored_fingerprint="",
        parent_fingerprint=data.fingerprint,
        split_fingerprint=split_fingerprint,
    )
