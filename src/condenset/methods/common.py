"""What methods share: how many images each class gives and what they start as, Adam, and the finished set."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from condenset import draws
from condenset.data.store import ClassStore
from condenset.errors import UserError
from condenset.recipes import Recipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData, denormalise
from condenset.version import VERSION

ADAM, ADAM_EPSILON = (0.9, 0.999), 1e-8
NUM_LOSSES = 1024  # kept on the device between two looks at them


def images_per_class(data: ImageData, recipe: Recipe) -> list[int]:
    """How many images each class will have; a class with too few is named, unless fewer are allowed."""
    for name, count in zip(data.class_names, data.class_counts, strict=True):
        if count == 0:
            raise UserError(f"class {name!r} has no images")
        if count < recipe.ipc and not recipe.allow_fewer:
            raise UserError(
                f"ipc must be at most the size of every class, but got {recipe.ipc} and class {name!r} has {count} "
                "images: give a smaller ipc, or --set allow_fewer=true (allow_fewer=True in Python) to take all it has"
            )
    return [min(recipe.ipc, count) for count in data.class_counts]


def labels_of(counts: list[int]) -> Tensor:
    """(N,) the class of every image, class by class."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def unpadded(images_KICHW: Tensor, counts: list[int]) -> Tensor:
    """(N, C, H, W) the first `count` images of every class, class by class."""
    return torch.cat([images[:count] for images, count in zip(images_KICHW, counts, strict=True)])


def initial_images(store: ClassStore, init: str, seed: int, num: int) -> Tensor:
    """(K, num, C, H, W) what images start as: real ones of their class (padded where it has fewer), or noise."""
    device = store.counts.device
    key, classes_K = draws.make_key(seed, "init", device=device), torch.arange(len(store.counts), device=device)
    if init == "real":
        return store.take(store.choose(key, 0, classes_K, num))
    shape = (num, *store.images_NCHW.shape[1:])
    return draws.normal(key, 0, store.rows(classes_K), math.prod(shape)).view(-1, *shape)


def adam(values: Tensor, gradient: Tensor, moments: Tensor, clock: Tensor, lr: float | Tensor) -> None:
    """One step of Adam in place; moments: (2, ...) running means of gradient and square; clock: steps done so far."""
    mean, square = moments
    mean.lerp_(gradient, 1 - ADAM[0])
    square.lerp_(gradient.square(), 1 - ADAM[1])
    fair_mean, fair_square = (
        moment / (1 - decay ** (clock + 1)) for moment, decay in zip((mean, square), ADAM, strict=True)
    )
    values.sub_(lr * fair_mean / (fair_square.sqrt() + ADAM_EPSILON))


def tick(clock: Tensor, losses: Tensor, loss: Tensor) -> None:
    """End the iteration that the clock says: its loss goes where `runs.iterate` looks for it."""
    losses.index_copy_(0, (clock % len(losses))[None], loss.detach()[None])
    clock += 1


def weights_of(counts: list[int], width: int) -> Tensor:
    """(K, width) weights 1/count in the first `count` places of a row, 0 in the rest."""
    count_K1 = torch.tensor(counts, dtype=torch.float32)[:, None]
    return (torch.arange(width) < count_K1).float() / count_K1


def finished(
    images_NCHW: Tensor,
    labels: Tensor,
    data: ImageData,
    method: str,
    recipe: Recipe,
    run: Run,
    seconds: float,
    step_sizes: Tensor | None = None,
    **about: Any,
) -> CondensedSet:
    """The set, in pixel space on the host, with where it came from; images_NCHW are normalised.

    about: what else provenance should say.
    """
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
        **about,
    }
    return CondensedSet(
        images=denormalise(images_NCHW.detach().float().cpu(), data.mean, data.std),
        labels=labels.cpu(),
        class_names=data.class_names,
        mean=data.mean,
        std=data.std,
        step_sizes=None if step_sizes is None else step_sizes.detach().float().cpu(),
        provenance=provenance,
    )
