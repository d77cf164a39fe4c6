"""Validation images: a part of the training images that nothing is learned on, to choose by instead of the test's."""

from __future__ import annotations

import dataclasses
import re

import torch
from torch import Tensor

from condenset import draws
from condenset.errors import UserError, check, whole
from condenset.types import ImageData, check_data


def split_off(data: ImageData, share: float = 0.1, *, seed: int = 0) -> tuple[ImageData, ImageData]:
    """Two parts of a dataset: what is left to learn on, and this share of every class, at least an image, drawn."""
    check_data("data", data)
    seed = whole("seed", seed)
    check(isinstance(share, int | float) and 0 < share < 1, "share must lie between 0 and 1", share)
    taken: list[Tensor] = []
    for number, (name, count) in enumerate(zip(data.class_names, data.class_counts, strict=True)):
        if count == 0:
            continue
        if count == 1:
            raise UserError(f"class {name!r} has one image, so none can be split off")
        num = min(max(round(share * count), 1), count - 1)
        chosen = draws.permutation(draws.make_key(seed, "split off", number), 0, count)[:num]
        taken.append((data.labels == number).nonzero()[:, 0][chosen])
    mask = torch.zeros(len(data), dtype=torch.bool)
    mask[torch.cat(taken)] = True
    rest, held = (_part(data, rows) for rows in ((~mask).nonzero()[:, 0], mask.nonzero()[:, 0]))
    return rest, held


def is_part(source: str) -> bool:
    """Whether the source of some data says that they are what `split_off` gave."""
    return re.search(r"\d+ of its \d+ images$", source) is not None


def _part(data: ImageData, rows: Tensor) -> ImageData:
    source = f"{data.source}; {len(rows)} of its {len(data)} images".removeprefix("; ")
    return dataclasses.replace(
        data, images=data.images[rows], labels=data.labels[rows], source=source, known_fingerprint=""
    )
