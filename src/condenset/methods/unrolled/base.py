"""What dd and gtn share: learn a training set and its step sizes by differentiating through training on the set.

Shapes: N synthetic images, P parameters of the network, T unrolled steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from condenset.config import check_int_fields, check_positive_fields
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.errors import check
from condenset.methods.common import ADAM_BETAS, adam_step, class_labels
from condenset.methods.problem import LearningProblem
from condenset.methods.recipe import Recipe, check_learning_fields
from condenset.methods.samplers import build_on_meta, sample_new_networks
from condenset.methods.unrolled.unrolling import Gradients, TrainingStep, differentiate_training
from condenset.runs.context import RunContext
from condenset.training.learned_steps import batch_schedule

NUM_HALVINGS = 4  # of the learning rate, each after a fifth of the run, because the last iterate is the result
MAX_STEP_SIZE = 100  # the exponential of a step size must be finite
MAX_UNROLLED = 1000  # steps per epoch, and epochs; time grows with their product
MAX_NORM_RATIO = 2.0  # largest gradient norm, relative to the norm expected from Adam's second moment


@dataclass(frozen=True, kw_only=True)
class UnrolledRecipe(Recipe):
    """Settings of methods that learn a training set and its step sizes.

    Attributes:
        network: Spec of the networks that train on the images.
        iterations: Number of iterations.
        lr: Learning rate of Adam, halved four times during the run.
        batch_size: Real images per iteration, of all classes together.
        steps: Unrolled training steps per epoch; each step trains on its own part of the set.
        epochs: Unrolled epochs.
        step_size: Initial step size of every unrolled step.
    """

    network: str = "convnet"
    iterations: int = 5_000
    lr: float = 1e-3
    batch_size: int = 1024
    steps: int = 10
    epochs: int = 3
    step_size: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_int_fields(self, 1, "steps", "epochs", maximum=MAX_UNROLLED)
        check_positive_fields(self, "step_size")
        check(self.step_size <= MAX_STEP_SIZE, f"step_size must be at most {MAX_STEP_SIZE}", self.step_size)


class UnrolledProblem(LearningProblem):
    """The state of a run, in float32 because a step computes second derivatives.

    Subclasses learn the images. They have a `step`, and add to `learned` what they learn.

    Attributes:
        size_lr_factor: Learning rate of the step sizes, relative to that of the recipe.
    """

    recipe: UnrolledRecipe
    size_lr_factor: ClassVar[float] = 1.0

    def __init__(self, data: ImageData, recipe: UnrolledRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run)
        device = run.compute.device
        self.store = ClassStore(data, device)
        self.network = build_on_meta(recipe.network, data)
        self.networks = sample_new_networks(recipe.network, data, run.seed, run.compute, xavier=True)  # as published
        self.real_key = self.make_key("real")
        self.labels_N = class_labels(counts).to(device)
        self.schedule = batch_schedule(self.labels_N, recipe.steps, recipe.epochs)
        raw_size = math.log(math.expm1(recipe.step_size))  # softplus of the raw size, so that step sizes stay above 0
        self.raw_sizes_T = torch.full((len(self.schedule),), raw_size, device=device)
        self.size_moments = torch.zeros(2, *self.raw_sizes_T.shape, device=device)

    @property
    def learned(self) -> dict[str, Tensor]:
        return {"step_sizes": self.raw_sizes_T, "size_moments": self.size_moments}

    @property
    def step_sizes_T(self) -> Tensor:
        """The size of every unrolled step."""
        return F.softplus(self.raw_sizes_T)

    def differentiate(self, images_NCHW: Tensor) -> Gradients:
        """Train sampled weights on the images, and differentiate the loss on real images."""
        index_B = self.store.sample_indices(self.real_key, self.clock, self.recipe.batch_size)
        real = self.store.take_normalized(index_B), self.store.labels_N[index_B]
        return differentiate_training(
            TrainingStep(self.loss),
            self.networks.sample_weights(self.clock),
            images_NCHW,
            self.labels_N,
            self.schedule,
            self.step_sizes_T,
            lambda weights_P: self.loss(weights_P, *real),
            after_step=self.run.check_stop,
        )

    def update(self, values: Tensor, gradient: Tensor, moments: Tensor, lr_factor: float = 1.0) -> None:
        """Update learned values in place by Adam with a clipped gradient and a decreasing learning rate."""
        lr = self.recipe.lr * 0.5 ** (self.clock * (NUM_HALVINGS + 1) // max(self.recipe.iterations, 1))
        adam_step(values, clip_gradient(gradient, moments, self.clock), moments, self.clock, lr_factor * lr)

    def finish_step(self, gradients: Gradients) -> None:
        """Update the step sizes, record the loss and advance the clock."""
        by_raw_sizes_T = gradients.step_sizes_T * torch.sigmoid(self.raw_sizes_T)
        self.update(self.raw_sizes_T, by_raw_sizes_T, self.size_moments, self.size_lr_factor)
        # A training that diverged has a loss of NaN or infinity, which would stop the run: record the previous loss.
        (previous,) = self.losses.index_select(0, ((self.clock - 1) % len(self.losses)).view(1))
        self.record_loss(torch.where(gradients.loss.isfinite(), gradients.loss, previous))

    def loss(self, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross-entropy; neither compiled nor by custom kernels, which have no second derivative."""
        parameters = self.networks.unflatten(weights_P, weights_P.dtype)
        return F.cross_entropy(functional_call(self.network, parameters, (images_NCHW,)), labels_N)


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
