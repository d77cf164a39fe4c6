"""Random: class-balanced random real images, the baseline that every method has to beat."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.engine.rng import make_key
from condenset.methods.common import (
    build_condensed_set,
    class_labels,
    images_per_class,
    max_images_per_class,
    remove_padding,
)
from condenset.methods.recipe import Recipe
from condenset.methods.registry import Method
from condenset.runs.context import RunContext


@dataclass(frozen=True, kw_only=True)
class RandomRecipe(Recipe):
    """Settings of random selection."""


def condense(data: ImageData, recipe: RandomRecipe, run: RunContext) -> CondensedSet:
    """Select random real images of every class."""
    start = time.monotonic()
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    store = ClassStore(data, torch.device("cpu"))
    classes_K = torch.arange(data.num_classes)
    images_KICHW = store.take_normalized(
        store.sample_class_indices(make_key(run.seed, "init"), 0, classes_K, max_images_per_class(data, recipe))
    )
    images_NCHW = remove_padding(images_KICHW, counts)
    seconds = time.monotonic() - start
    return build_condensed_set(images_NCHW, class_labels(counts), data, recipe, run, seconds)


METHOD = Method(
    name="random",
    recipe=RandomRecipe,
    condense=condense,
    summary="Select random real images of every class.",
    class_dependence=lambda recipe: "",
    is_coreset=True,
    streams_images=True,
)
