"""GMMN: one generator per class, trained with the kernel MMD between real and generated pixels.

Shapes: K classes, B real images per class, F pixels, P weights of a generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.compile import with_autocast
from condenset.engine.device import ComputeDevice
from condenset.engine.memory import MemoryEstimate, num_classes_that_fit, peak_memory, split_evenly
from condenset.methods.common import adam_step, mean_weights
from condenset.methods.generative.generators import ClassGenerators, ImageGenerator
from condenset.methods.generative.recipe import GenerativeRecipe
from condenset.methods.generative.training import GeneratorTraining, condense_by_generator
from condenset.methods.matching.objectives import kernel_distance
from condenset.methods.registry import Method
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS

NUM_BANDWIDTHS = 5  # of the Gaussian kernels, around the mean squared distance of two images


@dataclass(frozen=True, kw_only=True)
class GMMNRecipe(GenerativeRecipe):
    """Settings of the generative moment matching network.

    Attributes:
        batch_size: Real and generated images per class and step. A smaller class has fewer real images.
    """

    iterations: int = 40_000
    lr: float = 1e-3
    batch_size: int = 256
    width: int = 512


def condense(data: ImageData, recipe: GMMNRecipe, run: RunContext) -> CondensedSet:
    """Train generative moment matching networks (Li et al., ICML 2015), and draw the set from them."""
    return condense_by_generator(data, recipe, run, build_generators, GMMNTraining)


def build_generators(data: ImageData, recipe: GMMNRecipe) -> ClassGenerators:
    """Build the generators of all classes."""
    shape = (data.channels, data.size, data.size)
    return ClassGenerators(
        image_shape=shape, num_classes=data.num_classes, width=recipe.width, mean=data.mean, std=data.std
    )


class GMMNTraining(GeneratorTraining):
    """The state of the training and its step. Each class has its own generator and random numbers."""

    def __init__(self, data: ImageData, recipe: GMMNRecipe, run: RunContext) -> None:
        super().__init__(data, recipe, run)
        device = run.compute.device
        self.generators = build_generators(data, recipe).to(device)
        self.classes_K = torch.arange(data.num_classes, device=device)
        num_weights = self.generators.weights_KP.shape[1]
        uniform_KP = rng.uniform(self.make_key("init"), 0, self.store.stream_ids(self.classes_K), num_weights)
        self.weights_KP = self.generators.initialize(uniform_KP)
        self.moments = torch.zeros(2, *self.weights_KP.shape, device=device)
        self.real_key, self.latent_key = self.make_key("real"), self.make_key("latents")
        self.num_real = min(recipe.batch_size, data.largest_class)
        counts = [min(count, self.num_real) for count in data.class_counts]
        self.real_weight_KB = mean_weights(counts, self.num_real).to(device)
        self.distance = kernel_distance(NUM_BANDWIDTHS)
        self.generate = with_autocast(self.generators.generate, run.compute)
        max_classes = run.classes_per_chunk or classes_per_chunk(data, recipe, run.compute, run.memory_limit)
        self.chunks = split_evenly(data.num_classes, max_classes)

    @property
    def learned(self) -> dict[str, Tensor]:
        return {"class_generators": self.weights_KP, "moments": self.moments}

    def step(self) -> None:
        """Update the generators of all classes by Adam on the sum of the MMDs."""
        total, lr = torch.zeros_like(self.losses[0]), self.lr
        for chunk in self.chunks:
            weights = self.weights_KP[chunk].detach().requires_grad_()
            loss = self.mmd(weights, chunk).sum()
            (gradient,) = torch.autograd.grad(loss, weights)
            adam_step(self.weights_KP[chunk], gradient, self.moments[:, chunk], self.clock, lr)
            total += loss.detach()
            self.run.check_stop(1 / (len(self.chunks) + 1))
        self.record_loss(total)

    def mmd(self, weights_KP: Tensor, chunk: slice) -> Tensor:
        """Return (K,) distances of the classes of a chunk: the root of the squared MMD, as published."""
        classes_K, step = self.classes_K[chunk], self.clock
        index_KB = self.store.sample_class_indices(self.real_key, step, classes_K, self.num_real)
        real_KBF = self.store.take_normalized(index_KB).flatten(2)
        streams_K, num_generated = self.store.stream_ids(classes_K), self.recipe.batch_size  # also for small classes
        latents = self.generators.sample_latents(self.latent_key, step, streams_K, num_generated)
        squared_K = self.distance(real_KBF, self.generate(weights_KP, latents), self.real_weight_KB[chunk], None)
        return squared_K.clamp(min=1e-8).sqrt()

    @torch.no_grad()
    def finish(self) -> ImageGenerator:
        """Return the generators of all classes."""
        self.generators.weights_KP.copy_(self.weights_KP)
        return self.generators.eval()


def classes_per_chunk(data: ImageData, recipe: GMMNRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return how many classes are computed at once."""
    return num_classes_that_fit(_training_memory(data, recipe), compute, memory_limit)


def estimate_memory(data: ImageData, recipe: GMMNRecipe, compute: ComputeDevice, memory_limit: int | None) -> int:
    """Return the bytes that a run needs."""
    return peak_memory(_training_memory(data, recipe), data.num_classes, compute, memory_limit)


def _training_memory(data: ImageData, recipe: GMMNRecipe) -> MemoryEstimate:
    """Estimate the memory of the training.

    It always needs the images, and the weights of all classes twice with two moments. A class that is computed needs
    images and activations, pairs of images, and gradients.
    """
    num_pixels, num_weights = data.images[0].numel(), build_on_meta(data, recipe).weights_KP.shape[1]
    num_real, num_generated = min(recipe.batch_size, data.largest_class), recipe.batch_size
    num_values = 3 * (num_real + num_generated) * num_pixels + 8 * num_generated * recipe.width
    num_pairs = (2 * NUM_BANDWIDTHS + 4) * (num_real**2 + num_generated * (num_real + num_generated))
    fixed_bytes = data.images.numel() + 4 * 4 * data.num_classes * num_weights
    return MemoryEstimate(fixed_bytes, 4 * (num_values + num_pairs + 6 * num_weights))


def build_on_meta(data: ImageData, recipe: GMMNRecipe) -> ClassGenerators:
    """Build the generators without values."""
    with torch.device("meta"):
        return build_generators(data, recipe)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return smaller generators for large images, and quick settings for the digits."""
    if (dataset, size) == DIGITS:
        return {"iterations": 1000, "batch_size": 64, "width": 64}
    return {"width": 128} if size >= 64 else {}


METHOD = Method(
    name="gmmn",
    recipe=GMMNRecipe,
    condense=condense,
    summary="Draw images from one generator per class, trained with the kernel MMD of pixels (GMMN).",
    source="Li et al., ICML 2015",
    presets=presets,
    tiny={"iterations": 5, "batch_size": 16, "width": 8},
    estimate_memory=estimate_memory,
    classes_per_chunk=classes_per_chunk,
    class_dependence=lambda recipe: "",
)
