"""What methods share: how many images each class gives, and the finished set with its provenance."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

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
