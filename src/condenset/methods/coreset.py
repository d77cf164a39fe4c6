"""Coresets: real images, chosen."""

from __future__ import annotations

import time

import torch

from condenset.data.store import ClassStore
from condenset.draws import make_key
from condenset.methods.common import finished, images_per_class
from condenset.recipes import RandomRecipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData


def random(data: ImageData, recipe: RandomRecipe, run: Run) -> CondensedSet:
    """Class-balanced random real images."""
    start = time.monotonic()
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    store = ClassStore(data, torch.device("cpu"))
    classes = torch.arange(data.num_classes)
    images_KICHW = store.take(store.choose(make_key(run.seed, "init"), 0, classes, max(counts)))
    chosen = torch.cat([images[:count] for images, count in zip(images_KICHW, counts, strict=True)])
    labels = torch.repeat_interleave(classes, torch.tensor(counts))
    return finished(chosen, labels, data, "random", recipe, run, time.monotonic() - start)
