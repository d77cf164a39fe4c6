"""What methods share: how many images each class gives, and the finished set with its provenance."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from condenset import draws
from condenset.data.store import ClassStore
from condenset.errors import UserError
from condenset.recipes import Recipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData, denormalise
from condenset.version import VERSION


def images_per_class(data: ImageData, recipe: Recipe) -> list[int]:
    """How many images each class will have; a class with too few is named, unless fewer are allowed."""
    for name, count in zip(data.class_names, data.class_counts, strict=True):
        if count == 0:
            raise UserError(f"class {name!r} has no images")
        if count < recipe.ipc and not recipe.allow_fewer:
            raise UserError(
                f"ipc must be at most the size of every class, but got {recipe.ipc} and class {name!r} has {count} "
                "images (--allow-fewer takes all of them)"
            )
    return [min(recipe.ipc, count) for count in data.class_counts]


def initial_images(data: ImageData, store: ClassStore, init: str, num: int, seed: int) -> Tensor:
    """(K, num, C, H, W) what images start as: real ones of their class, or noise; normalised, on the store's device."""
    device = store.counts.device
    key = draws.make_key(seed, "init", device=device)
    classes_K = torch.arange(data.num_classes, device=device)
    if init == "real":
        return store.take(store.choose(key, 0, classes_K, num))
    shape = (num, data.channels, data.size, data.size)
    return draws.normal(key, 0, classes_K, math.prod(shape)).view(-1, *shape)


def weights_of(counts: list[int], width: int) -> Tensor:
    """(K, width) weights 1/count in the first `count` places of a row, 0 in the rest."""
    count_K1 = torch.tensor(counts, dtype=torch.float32)[:, None]
    return (torch.arange(width) < count_K1).float() / count_K1


def finished(
    images_NCHW: Tensor, labels: Tensor, data: ImageData, method: str, recipe: Recipe, run: Run, seconds: float
) -> CondensedSet:
    """The set, in pixel space on the host, with where it came from; images_NCHW are normalised."""
    provenance = {
        "method": method,
        "recipe": dataclasses.asdict(recipe),
        "seed": run.seed,
        "dataset": data.name,
        "source": data.source,
        "fingerprint": data.fingerprint,
        "can_flip": data.can_flip,
        "version": VERSION,
        "seconds": round(seconds, 3),
        "device": run.place.device.type,
        "precision": run.place.precision,
        "hardware": run.place.hardware,
        "torch": str(torch.__version__),
        "peak_memory_bytes": run.place.peak_memory(),
    }
    return CondensedSet(
        images=denormalise(images_NCHW.detach().float().cpu(), data.mean, data.std),
        labels=labels.cpu(),
        class_names=data.class_names,
        mean=data.mean,
        std=data.std,
        provenance=provenance,
    )
