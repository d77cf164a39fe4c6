"""Train a generator on all images of a dataset, keep it in the run directory, and draw the set from it."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.data.transform import denormalize
from condenset.engine import rng
from condenset.methods.common import (
    build_condensed_set,
    class_labels,
    images_per_class,
    max_images_per_class,
    remove_padding,
)
from condenset.methods.generative.generators import ImageGenerator
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.problem import LearningProblem
from condenset.methods.registry import method_of
from condenset.methods.trained_files import describe_inputs, load_or_train
from condenset.runs.context import RunContext


class GeneratorTraining(LearningProblem):
    """The state of a training and its step.

    Attributes:
        store: The real images on the device.
    """

    def __init__(self, data: ImageData, recipe: Any, run: RunContext) -> None:
        super().__init__(data, recipe, run)
        self.store = ClassStore(data, run.compute.device)

    @abstractmethod
    def finish(self) -> ImageGenerator:
        """Return the trained generator in evaluation mode."""

    @property
    def lr(self) -> Tensor:
        """The learning rate of the current step, which falls linearly."""
        lr: Tensor = self.recipe.lr * (1 - self.clock / max(self.recipe.iterations, 1))
        return lr


def condense_by_generator(
    data: ImageData,
    recipe: GenerativeRecipe,
    run: RunContext,
    build: Callable[[ImageData, Any], ImageGenerator],
    training: Callable[[ImageData, Any, RunContext], GeneratorTraining],
) -> CondensedSet:
    """Train a generator, unless the run has it already, and draw the set from it.

    Args:
        data: The real images.
        recipe: The settings.
        run: The run.
        build: Build the generator, with any weights, in evaluation mode.
        training: The training of the generator.
    """
    counts, device = images_per_class(data, recipe), run.compute.device
    run.compute.reset_peak_memory()
    generator, seconds = _load_or_train_generator(data, recipe, run, build, training)
    key, streams_K = rng.make_key(run.seed, "set latents", device=device), _stream_ids(data, device)
    latents_KIZ = generator.sample_latents(key, 0, streams_K, max_images_per_class(data, recipe))
    images_NCHW = remove_padding(generator.draw(latents_KIZ), counts)
    if data.whitening is not None:
        images_NCHW = data.whitening.apply(denormalize(images_NCHW, data.mean, data.std))
    return build_condensed_set(images_NCHW, class_labels(counts), data, recipe, run, seconds)


def _load_or_train_generator(
    data: ImageData,
    recipe: GenerativeRecipe,
    run: RunContext,
    build: Callable[[ImageData, Any], ImageGenerator],
    training: Callable[[ImageData, Any, RunContext], GeneratorTraining],
) -> tuple[ImageGenerator, float]:
    """Return the generator in evaluation mode, and the seconds of its training."""
    method = method_of(recipe).name
    # Generators learn pixels, which the set then whitens.
    pixels = data if data.whitening is None else dataclasses.replace(data, whitening=None)

    def train() -> tuple[Mapping[str, Tensor], float]:
        problem = training(pixels, recipe, run)
        seconds = problem.learn(description=f"{method}, training a generator")
        return problem.finish().state_dict(), seconds

    def restore(tensors: Mapping[str, Tensor], seconds: float) -> tuple[ImageGenerator, float]:
        generator = build(data, recipe)
        generator.load_state_dict(tensors)
        return generator.to(run.compute.device).eval(), seconds

    return load_or_train(
        "generator",
        {"method": method, **recipe.training_fields(), **describe_inputs(data, run)},
        run,
        train=train,
        make_expected=lambda: build(data, recipe).state_dict(),
        restore=restore,
    )


def _stream_ids(data: ImageData, device: torch.device) -> Tensor:
    """Return (K,) ids of the random streams of the classes."""
    return torch.tensor(data.class_stream_ids or range(data.num_classes), device=device)
