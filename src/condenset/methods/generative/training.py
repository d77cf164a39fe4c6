"""Train a generator on all images of a dataset, keep it in the run directory, and draw the set from it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.transform import denormalize
from condenset.engine import rng
from condenset.engine.cuda_graph import capture_step
from condenset.methods.common import (
    NUM_LOSSES,
    build_condensed_set,
    class_labels,
    images_per_class,
    max_images_per_class,
    remove_padding,
)
from condenset.methods.generative.generators import ImageGenerator
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.generative.storage import find_generator, store_generator
from condenset.methods.registry import method_of
from condenset.runs.context import RunContext
from condenset.runs.loop import run_loop


class GeneratorTraining(ABC):
    """The state of a training and its step.

    Attributes:
        data, recipe, run: What is trained, how and where.
        store: The real images on the device.
        losses: The last losses.
        clock: The number of steps so far.
    """

    def __init__(self, data: ImageData, recipe: Any, run: RunContext) -> None:
        self.data, self.recipe, self.run = data, recipe, run
        self.store = ClassStore(data, run.compute.device)
        self.losses = torch.zeros(NUM_LOSSES, device=run.compute.device)
        self.clock = torch.zeros((), dtype=torch.int64, device=run.compute.device)

    @property
    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one step to the next."""

    @abstractmethod
    def step(self) -> None:
        """Run one step."""

    @abstractmethod
    def finish(self) -> ImageGenerator:
        """Return the trained generator in evaluation mode."""

    def make_key(self, purpose: str) -> Tensor:
        """Return the key of the random numbers for a purpose."""
        return rng.make_key(self.run.seed, purpose, device=self.clock.device)

    @property
    def lr(self) -> Tensor:
        """The learning rate of the current step, which falls linearly."""
        lr: Tensor = self.recipe.lr * (1 - self.clock / max(self.recipe.iterations, 1))
        return lr

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        fast_step = capture_step(self.step, list(self.state.values()), self.run.compute)
        return lambda iteration: fast_step()


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
    # Generators learn pixels, which the set then whitens.
    pixels = data if data.whitening is None else dataclasses.replace(data, whitening=None)

    def train() -> tuple[ImageGenerator, float]:
        problem = training(pixels, recipe, run)
        description = f"{method_of(recipe).name}, training a generator"
        seconds = run_loop(run, problem.state, recipe.iterations, problem.make_step, description)
        return problem.finish(), seconds

    stored = find_generator(data, recipe, run, lambda: build(data, recipe))
    generator, seconds = stored or store_generator(data, recipe, run, *train())
    key, streams_K = rng.make_key(run.seed, "set latents", device=device), _stream_ids(data, device)
    latents_KIZ = generator.sample_latents(key, 0, streams_K, max_images_per_class(data, recipe))
    images_NCHW = remove_padding(generator.draw(latents_KIZ), counts)
    if data.whitening is not None:
        images_NCHW = data.whitening.apply(denormalize(images_NCHW, data.mean, data.std))
    return build_condensed_set(images_NCHW, class_labels(counts), data, recipe, run, seconds)


def _stream_ids(data: ImageData, device: torch.device) -> Tensor:
    """Return (K,) ids of the random streams of the classes."""
    return torch.tensor(data.class_stream_ids or range(data.num_classes), device=device)
