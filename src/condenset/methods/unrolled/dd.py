"""Dataset distillation: learn images and step sizes by differentiating through training on them.

Shapes: N synthetic images, B real images, P parameters of the network, T unrolled steps.
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

from condenset.config import check_bool_fields, check_int_fields, check_positive_fields
from condenset.data.class_store import ClassStore
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.ipc import format_ipc
from condenset.engine import rng
from condenset.errors import check, check_choice
from condenset.methods.common import (
    ADAM_BETAS,
    NUM_LOSSES,
    adam_step,
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_images,
    record_loss,
    remove_padding,
)
from condenset.methods.recipe import INITS, TINY_NETWORK, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.samplers import build_on_meta, make_loop_step, sample_new_networks
from condenset.methods.unrolled.unrolling import differentiate_training
from condenset.runs.context import RunContext
from condenset.runs.loop import run_loop
from condenset.training.learned_steps import batch_schedule
from condenset.training.protocol import DIGITS, DIGITS_NETWORK

NUM_HALVINGS = 4  # of the learning rate, each after a fifth of the run, because the last iterate is the result
MAX_STEP_SIZE = 100  # the exponential of a step size must be finite
MAX_UNROLLED = 1000  # steps per epoch, and epochs; the memory grows with their product
MAX_NORM_RATIO = 2.0  # largest gradient norm, relative to the norm expected from Adam's second moment


@dataclass(frozen=True, kw_only=True)
class DDRecipe(Recipe):
    """Settings of dataset distillation.

    `ipc` and `allow_fewer` are those of `Recipe`.

    Attributes:
        network: Spec of the network; the paper uses lenet for MNIST and FashionMNIST.
        iterations: Number of iterations.
        lr: Learning rate of Adam, halved four times during the run.
        batch_size: Real images per iteration, of all classes together.
        steps: Unrolled training steps per epoch; each step trains on its own part of the set.
        epochs: Unrolled epochs.
        step_size: Initial step size of every unrolled step.
        init: Start from "real" images or from "noise".
        fixed_network: Use one initialisation of the network for the whole run, instead of a new one per iteration.
    """

    network: str = "alexnet_small"
    iterations: int = 20_000
    lr: float = 0.01
    batch_size: int = 1024
    steps: int = 10
    epochs: int = 3
    step_size: float = 0.02
    init: str = "noise"
    fixed_network: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_int_fields(self, 1, "steps", "epochs", maximum=MAX_UNROLLED)
        check_positive_fields(self, "step_size")
        check(self.step_size <= MAX_STEP_SIZE, f"step_size must be at most {MAX_STEP_SIZE}", self.step_size)
        check_choice("init", self.init, INITS)
        check_bool_fields(self, "fixed_network")


def condense(data: ImageData, recipe: DDRecipe, run: RunContext) -> CondensedSet:
    """Learn images and step sizes by dataset distillation (Wang et al., 2018)."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = DatasetDistillation(data, recipe, run, counts)
    description = f"dd, {format_ipc(recipe.ipc)} per class"

    def result(seconds: float) -> CondensedSet:
        sizes_T = F.softplus(problem.raw_sizes_T)
        return build_condensed_set(problem.images_NCHW, problem.labels_N, data, recipe, run, seconds, sizes_T)

    return result(run_loop(run, problem.state, recipe.iterations, problem.make_step, description, result))


def clip_gradient(gradient: Tensor, moments: Tensor, clock: Tensor) -> Tensor:
    """Return the gradient with a norm of at most MAX_NORM_RATIO times the expected norm, or 0 if it is not finite.

    Training diverges from a few initial weights. The gradient through it is then 30 times the median or more. Adam
    would take a step along that gradient alone, and its second moment, which averages over a thousand iterations, would
    keep all later steps small. So gradients are clipped before they enter the second moment. In the long run at most
    1/MAX_NORM_RATIO² of them are clipped.
    """
    norm = torch.linalg.vector_norm(gradient)
    limit = MAX_NORM_RATIO * (moments[1].sum() / (1 - ADAM_BETAS[1] ** clock)).sqrt()  # NaN before the first step
    scale = torch.where((norm > limit) & (limit > 0), limit / norm, 1.0)
    return torch.where(norm.isfinite(), scale * gradient, 0.0)


class DatasetDistillation:
    """The state of a distillation run and its step, in float32 because the step computes second derivatives."""

    def __init__(self, data: ImageData, recipe: DDRecipe, run: RunContext, counts: list[int]) -> None:
        device, self.recipe, self.run = run.compute.device, recipe, run
        self.store = ClassStore(data, device)
        self.network = build_on_meta(recipe.network, data)
        self.networks = sample_new_networks(
            recipe.network,
            data,
            run.seed,
            run.compute,
            xavier=True,  # as published
            fixed=recipe.fixed_network,
        )
        self.real_key = rng.make_key(run.seed, "real", device=device)

        initial_KICHW = initial_images(self.store, recipe.init, run.seed, max(counts))
        self.images_NCHW, self.labels_N = remove_padding(initial_KICHW, counts), class_labels(counts).to(device)
        self.schedule = batch_schedule(self.labels_N, recipe.steps, recipe.epochs)
        raw_size = math.log(math.expm1(recipe.step_size))  # softplus of the raw size, so that step sizes stay above 0
        self.raw_sizes_T = torch.full((len(self.schedule),), raw_size, device=device)
        self.image_moments, self.size_moments = (
            torch.zeros(2, *values.shape, device=device) for values in (self.images_NCHW, self.raw_sizes_T)
        )
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one iteration to the next."""
        return {
            "images": self.images_NCHW,
            "step_sizes": self.raw_sizes_T,
            "image_moments": self.image_moments,
            "size_moments": self.size_moments,
            "losses": self.losses,
            "clock": self.clock,
        }

    def make_step(self) -> Callable[[int], None]:
        """Return the step of the loop, captured if possible; called once the state is restored."""
        return make_loop_step(self.step, self.state, self.networks, self.run.compute)

    def step(self) -> None:
        """Run one iteration: train sampled weights on the images, compute the loss on real images, update by Adam."""
        index_B = self.store.sample_indices(self.real_key, self.clock, self.recipe.batch_size)
        real = self.store.take_normalized(index_B), self.store.labels_N[index_B]
        gradients = differentiate_training(
            self.loss,
            self.networks.sample_weights(self.clock),
            self.images_NCHW,
            self.labels_N,
            self.schedule,
            F.softplus(self.raw_sizes_T),
            lambda weights_P: self.loss(weights_P, *real),
            after_step=lambda: self.run.check_stop(1 / (3 * len(self.schedule))),
        )
        lr = self.recipe.lr * 0.5 ** (self.clock * (NUM_HALVINGS + 1) // max(self.recipe.iterations, 1))
        by_raw_T = gradients.step_sizes_T * torch.sigmoid(self.raw_sizes_T)
        for values, gradient, moments in (
            (self.images_NCHW, gradients.images, self.image_moments),
            (self.raw_sizes_T, by_raw_T, self.size_moments),
        ):
            adam_step(values, clip_gradient(gradient, moments, self.clock), moments, self.clock, lr)
        # A training that diverged has a loss of NaN or infinity, which would stop the run: record the previous loss.
        (previous,) = self.losses.index_select(0, ((self.clock - 1) % len(self.losses)).view(1))
        record_loss(self.clock, self.losses, torch.where(gradients.loss.isfinite(), gradients.loss, previous))

    def loss(self, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy; neither compiled nor by custom kernels, which have no second derivative."""
        parameters = self.networks.unflatten(weights_P, weights_P.dtype)
        return F.cross_entropy(functional_call(self.network, parameters, (images_NCHW,)), labels_N)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's network for MNIST and FashionMNIST, and quick settings for the digits."""
    if dataset in ("mnist", "fashionmnist"):
        return {"network": "lenet"}
    if (dataset, size) != DIGITS:
        return {}
    return {
        "iterations": 150,
        "batch_size": 256,
        "network": DIGITS_NETWORK,
        "steps": 10,
        "epochs": 1,
        "step_size": 0.2,
        "lr": 0.05,
        "init": "real",
    }


METHOD = Method(
    name="dd",
    recipe=DDRecipe,
    condense=condense,
    summary="Dataset distillation: learn images and step sizes through unrolled training steps.",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 5, "batch_size": 32, "epochs": 2, "steps": 2},
    network_fits_evaluation=False,  # networks without norm layers learn little except by the learned steps
)
