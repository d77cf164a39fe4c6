"""GTN: learn a generator of training images by differentiating through training on them.

The latents of the images are learned too. Their order is a curriculum: each training step uses another part of the
set. The memory does not grow with the number of unrolled steps, see `unrolling`.
Shapes: N images, Z numbers of a latent, P weights of the generator or of a network, T unrolled steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from condenset.config import check_int_fields, check_positive_fields
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import format_ipc
from condenset.data.whitening import Whitening
from condenset.engine import rng
from condenset.engine.device import ComputeDevice
from condenset.errors import check
from condenset.methods.common import (
    ADAM_BETAS,
    NUM_LOSSES,
    adam_step,
    build_condensed_set,
    class_labels,
    images_per_class,
    record_loss,
)
from condenset.methods.generative.adversarial import build_conv_generator
from condenset.methods.generative.generators import LATENT_SIZE
from condenset.methods.generative.learner import Learner
from condenset.methods.generative.recipe import MAX_WIDTH
from condenset.methods.recipe import TINY_NETWORK, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.samplers import build_on_meta, make_loop_step, sample_new_networks
from condenset.methods.unrolled.dd import MAX_STEP_SIZE, MAX_UNROLLED, NUM_HALVINGS, clip_gradient
from condenset.methods.unrolled.unrolling import Gradients, differentiate_training
from condenset.runs.context import RunContext
from condenset.runs.loop import run_loop
from condenset.training.learned_steps import batch_schedule
from condenset.training.protocol import DIGITS, DIGITS_NETWORK

LATENT_LR_FACTOR = 10.0  # latents are few numbers of the size 1, unlike weights


@dataclass(frozen=True, kw_only=True)
class GTNRecipe(Recipe):
    """Settings of the generative teaching network.

    `ipc` and `allow_fewer` are those of `Recipe`.

    Attributes:
        network: Spec of the networks that are trained on the images.
        iterations: Number of iterations.
        lr: Learning rate of Adam for the generator and the step sizes. The latents learn ten times as fast.
        batch_size: Real images per iteration, of all classes together.
        steps: Unrolled training steps per epoch; each step trains on its own part of the set.
        epochs: Unrolled epochs.
        step_size: Initial step size of every unrolled step.
        width: Channels of the generator.
    """

    network: str = "convnet"
    iterations: int = 5_000
    lr: float = 1e-3
    batch_size: int = 1024
    steps: int = 10
    epochs: int = 3
    step_size: float = 0.02
    width: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_int_fields(self, 1, "steps", "epochs", maximum=MAX_UNROLLED)
        check_int_fields(self, 1, "width", maximum=MAX_WIDTH)
        check_positive_fields(self, "step_size")
        check(self.step_size <= MAX_STEP_SIZE, f"step_size must be at most {MAX_STEP_SIZE}", self.step_size)


def condense(data: ImageData, recipe: GTNRecipe, run: RunContext) -> CondensedSet:
    """Learn a generator of training images (Such et al., ICML 2020); the set has all images that it was trained for."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = GenerativeTeaching(data, recipe, run, counts)
    description = f"gtn, {format_ipc(recipe.ipc)} per class"
    seconds = run_loop(run, problem.state, recipe.iterations, problem.make_step, description)
    with torch.no_grad():
        images_NCHW = problem.generate(problem.generator.weights_P, problem.latents_NZ)
    step_sizes = F.softplus(problem.raw_sizes_T)
    return build_condensed_set(images_NCHW, problem.labels_N, data, recipe, run, seconds, step_sizes)


class GenerativeTeaching:
    """The state of a run and its step, in float32 because the step computes second derivatives."""

    def __init__(self, data: ImageData, recipe: GTNRecipe, run: RunContext, counts: list[int]) -> None:
        device, self.recipe, self.run = run.compute.device, recipe, run
        self.store = ClassStore(data, device)
        self.network = build_on_meta(recipe.network, data)
        self.networks = sample_new_networks(recipe.network, data, run.seed, run.compute, xavier=True)
        self.real_key = rng.make_key(run.seed, "real", device=device)
        float32 = ComputeDevice(device, torch.float32)
        self.generator = Learner(
            "generator", lambda: build_conv_generator(data, recipe.width), run.seed, float32, ADAM_BETAS
        )

        self.mean_C11, self.std_C11 = (
            torch.tensor(values, device=device)[:, None, None] for values in (data.mean, data.std)
        )
        self.whitening = data.whitening and Whitening(data.whitening.mean.to(device), data.whitening.matrix.to(device))
        self.labels_N = class_labels(counts).to(device)
        self.schedule = batch_schedule(self.labels_N, recipe.steps, recipe.epochs)
        stream, key = torch.zeros(1, dtype=torch.int64, device=device), rng.make_key(run.seed, "latents", device=device)
        self.latents_NZ = rng.normal(key, 0, stream, len(self.labels_N) * LATENT_SIZE).view(-1, LATENT_SIZE)
        raw_size = math.log(math.expm1(recipe.step_size))  # softplus of the raw size, so that step sizes stay above 0
        self.raw_sizes_T = torch.full((len(self.schedule),), raw_size, device=device)
        self.latent_moments, self.size_moments = (
            torch.zeros(2, *values.shape, device=device) for values in (self.latents_NZ, self.raw_sizes_T)
        )
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one iteration to the next."""
        return {
            **self.generator.state,
            "latents": self.latents_NZ,
            "latent_moments": self.latent_moments,
            "step_sizes": self.raw_sizes_T,
            "size_moments": self.size_moments,
            "losses": self.losses,
            "clock": self.clock,
        }

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        return make_loop_step(self.step, self.state, self.networks, self.run.compute)

    def generate(self, weights_P: Tensor, latents_NZ: Tensor) -> Tensor:
        """Return the (N, C, H, W) images of the set."""
        images: Tensor = self.generator.forward(weights_P, latents_NZ, self.labels_N)
        return images if self.whitening is None else self.whitening.apply(images * self.std_C11 + self.mean_C11)

    def step(self) -> None:
        """Run one iteration: train sampled weights on generated images, and update the generator by Adam."""
        loss, gradients = self.gradients()
        lr = self.recipe.lr * 0.5 ** (self.clock * (NUM_HALVINGS + 1) // max(self.recipe.iterations, 1))
        learned = (
            (self.generator.weights_P, self.generator.moments, lr),
            (self.latents_NZ, self.latent_moments, LATENT_LR_FACTOR * lr),
            (self.raw_sizes_T, self.size_moments, lr),
        )
        for (values, moments, rate), gradient in zip(learned, gradients, strict=True):
            adam_step(values, clip_gradient(gradient, moments, self.clock), moments, self.clock, rate)
        # A training that diverged has a loss of NaN or infinity, which would stop the run: record the previous loss.
        (previous,) = self.losses.index_select(0, ((self.clock - 1) % len(self.losses)).view(1))
        record_loss(self.clock, self.losses, torch.where(loss.isfinite(), loss, previous))

    def gradients(self) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the loss, and its gradients by the weights of the generator, the latents and the raw step sizes."""
        weights_P, latents_NZ = self.generator.require_grad(), self.latents_NZ.detach().requires_grad_()
        images_NCHW = self.generate(weights_P, latents_NZ)
        training = self.differentiate(images_NCHW.detach())
        by_weights, by_latents = torch.autograd.grad(images_NCHW, (weights_P, latents_NZ), training.images)
        return training.loss, (by_weights, by_latents, training.step_sizes_T * torch.sigmoid(self.raw_sizes_T))

    def differentiate(self, images_NCHW: Tensor) -> Gradients:
        """Train sampled weights on the images, and differentiate the loss on real images."""
        index_B = self.store.sample_indices(self.real_key, self.clock, self.recipe.batch_size)
        real = self.store.take_normalized(index_B), self.store.labels_N[index_B]
        return differentiate_training(
            self.loss,
            self.networks.sample_weights(self.clock),
            images_NCHW,
            self.labels_N,
            self.schedule,
            F.softplus(self.raw_sizes_T),
            lambda weights_P: self.loss(weights_P, *real),
            after_step=lambda: self.run.check_stop(1 / (3 * len(self.schedule))),
        )

    def loss(self, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy; neither compiled nor by custom kernels, which have no second derivative."""
        parameters = self.networks.unflatten(weights_P, weights_P.dtype)
        return F.cross_entropy(functional_call(self.network, parameters, (images_NCHW,)), labels_N)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits."""
    if (dataset, size) != DIGITS:
        return {}
    fields: dict[str, Any] = {"network": DIGITS_NETWORK, "iterations": 100, "batch_size": 256, "width": 16}
    return {**fields, "steps": 10, "epochs": 1, "step_size": 0.2, "lr": 5e-3}


METHOD = Method(
    name="gtn",
    recipe=GTNRecipe,
    condense=condense,
    summary="Generative teaching network: learn a generator of images through unrolled training steps.",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 3, "batch_size": 32, "epochs": 1, "steps": 2, "width": 4},
)
