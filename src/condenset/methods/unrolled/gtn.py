"""GTN: learn a generator of training images by differentiating through training on them.

The latents of the images are learned too. Their order is a curriculum: each training step uses another part of the
set. The graph of one unrolled step is in memory at a time, see `unrolling`.
Shapes: N images, Z numbers of a latent, P weights of the generator or of a network, T unrolled steps.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condenset.config import check_int_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.device import ComputeDevice
from condenset.methods.common import build_condensed_set, images_per_class
from condenset.methods.generative.adversarial import build_generator
from condenset.methods.generative.generators import LATENT_SIZE
from condenset.methods.generative.learner import Learner
from condenset.methods.generative.recipe import MAX_WIDTH
from condenset.methods.recipe import TINY_NETWORK
from condenset.methods.registry import Method
from condenset.methods.unrolled.base import UnrolledProblem, UnrolledRecipe
from condenset.methods.unrolled.unrolling import Gradients
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK


@dataclass(frozen=True, kw_only=True)
class GTNRecipe(UnrolledRecipe):
    """Settings of the generative teaching network.

    Attributes:
        lr: Learning rate of Adam for the generator and the latents. The step sizes learn ten times as fast.
        width: Channels of the generator.
    """

    lr: float = 3e-3
    step_size: float = 0.2
    width: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int_fields(self, 1, "width", maximum=MAX_WIDTH)


def condense(data: ImageData, recipe: GTNRecipe, run: RunContext) -> CondensedSet:
    """Learn a generator of training images (Such et al., ICML 2020); the set has all images that it was trained for."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = GenerativeTeaching(data, recipe, run, counts)
    seconds = problem.learn()
    with torch.no_grad():
        images_NCHW = problem.generate(problem.generator.weights_P, problem.latents_NZ)
    return build_condensed_set(images_NCHW, problem.labels_N, data, recipe, run, seconds, problem.step_sizes_T)


class GenerativeTeaching(UnrolledProblem):
    """The generator and the latents of a run, and its step."""

    size_lr_factor = 10.0  # the initial step sizes suit no set, and the images learn little until they fit

    def __init__(self, data: ImageData, recipe: GTNRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run, counts)
        device = run.compute.device
        float32 = ComputeDevice(device, torch.float32)
        # Spectral norm, which suits a GAN, slows wide generators down here.
        build = functools.partial(build_generator, data, recipe, spectral=False)
        self.generator = Learner("generator", build, run.seed, float32)
        self.mean_C11, self.std_C11 = (
            torch.tensor(values, device=device)[:, None, None] for values in (data.mean, data.std)
        )
        self.whitening = data.whitening and data.whitening.to(device)
        stream, key = torch.zeros(1, dtype=torch.int64, device=device), self.make_key("latents")
        self.latents_NZ = rng.normal(key, 0, stream, len(self.labels_N) * LATENT_SIZE).view(-1, LATENT_SIZE)
        self.latent_moments = torch.zeros(2, *self.latents_NZ.shape, device=device)

    @property
    def learned(self) -> dict[str, Tensor]:
        latents = {"latents": self.latents_NZ, "latent_moments": self.latent_moments}
        return {**self.generator.state, **latents, **super().learned}

    def generate(self, weights_P: Tensor, latents_NZ: Tensor) -> Tensor:
        """Return the (N, C, H, W) images of the set."""
        images: Tensor = self.generator.forward(weights_P, latents_NZ, self.labels_N)
        return images if self.whitening is None else self.whitening.apply(images * self.std_C11 + self.mean_C11)

    def step(self) -> None:
        """Run one iteration: train sampled weights on generated images, and update the generator by Adam."""
        gradients, by_weights_P, by_latents_NZ = self.differentiate_generator()
        self.update(self.generator.weights_P, by_weights_P, self.generator.moments)
        self.update(self.latents_NZ, by_latents_NZ, self.latent_moments)
        self.finish_step(gradients)

    def differentiate_generator(self) -> tuple[Gradients, Tensor, Tensor]:
        """Return the loss with its gradients, and those by the weights of the generator and by the latents."""
        weights_P, latents_NZ = self.generator.require_grad(), self.latents_NZ.detach().requires_grad_()
        images_NCHW = self.generate(weights_P, latents_NZ)
        gradients = self.differentiate(images_NCHW.detach())
        by_weights_P, by_latents_NZ = torch.autograd.grad(images_NCHW, (weights_P, latents_NZ), gradients.images)
        return gradients, by_weights_P, by_latents_NZ


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits."""
    if (dataset, size) != DIGITS:
        return {}
    fields: dict[str, Any] = {"network": DIGITS_NETWORK, "iterations": 100, "batch_size": 256, "width": 16}
    return {**fields, "steps": 10, "epochs": 1, "lr": 5e-3}


METHOD = Method(
    name="gtn",
    recipe=GTNRecipe,
    condense=condense,
    summary="Generative teaching network: learn a generator of images through unrolled training steps.",
    source="Such et al., ICML 2020",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 3, "batch_size": 32, "epochs": 1, "steps": 2, "width": 4},
)
