"""Dataset distillation: images and step sizes learned by differentiating through training on them.

Shapes: N synthetic images, B real ones, P weights of the network, T unrolled steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from condenset import draws, networks
from condenset.data.store import ClassStore
from condenset.engine.memory import parts
from condenset.engine.step import accelerate
from condenset.methods.common import (
    ADAM,
    NUM_LOSSES,
    adam,
    finished,
    images_per_class,
    initial_images,
    labels_of,
    tick,
    unpadded,
)
from condenset.recipes import UnrolledRecipe
from condenset.runs import Run, iterate
from condenset.train import dealt
from condenset.types import CondensedSet, ImageData

NUM_HALVINGS = 4  # of the learning rate in a run, each after a fifth of it: the last iterate is the result
LONGEST = 2.0  # gradient, in lengths that Adam's second moment leads to expect

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of weights (P,), images and labels


def dd(data: ImageData, recipe: UnrolledRecipe, run: Run) -> CondensedSet:
    """Dataset distillation (Wang et al., 2018)."""
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    problem = Unrolled(data, recipe, run, counts)
    seconds = iterate(run, problem.state, recipe.iterations, problem.prepare, f"dd, {recipe.ipc} a class")
    return finished(
        problem.images_NCHW, problem.labels_N, data, "dd", recipe, run, seconds, F.softplus(problem.raw_sizes_T)
    )


class Gradients(NamedTuple):
    """The real loss after training, and how it changes with the images and the step sizes."""

    loss: Tensor
    images: Tensor
    step_sizes_T: Tensor


def through_training(
    loss: Loss,
    weights_P: Tensor,
    images_NCHW: Tensor,
    labels_N: Tensor,
    schedule: Sequence[Tensor],
    step_sizes_T: Tensor,
    real: tuple[Tensor, Tensor],
) -> Gradients:
    """Train by gradient descent, step t on the images at schedule[t], and differentiate the loss on `real` by hand.

    The way back builds the graph of one step at a time. Of the weights on the way those before each of about √T
    stretches are kept, and those within a stretch found again when their turn comes. With λ the gradient by the weights
    after a step of size η and loss l: λ ← λ − η ∂²l/∂w² λ, images −η ∂²l/∂x∂w λ, step size −∂l/∂w · λ.
    """
    steps = list(zip(schedule, step_sizes_T.detach().unbind(), strict=True))
    stretches = [steps[part] for part in parts(len(steps), math.isqrt(len(steps)))]
    kept = [weights_P.detach()]
    for stretch in stretches:
        kept.append(_walk(loss, kept[-1], images_NCHW, labels_N, stretch)[-1])
    weights = kept.pop().requires_grad_()
    real_loss = loss(weights, *real)
    (adjoint,) = torch.autograd.grad(real_loss, weights)
    by_images, by_sizes = torch.zeros_like(images_NCHW), []
    for stretch in reversed(stretches):
        trail = _walk(loss, kept.pop(), images_NCHW, labels_N, stretch[:-1])
        for places, size in reversed(stretch):
            weights, group = trail.pop().requires_grad_(), images_NCHW[places].detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(weights, group, labels_N[places]), weights, create_graph=True)
            along = gradient @ adjoint
            by_weights, by_group = torch.autograd.grad(along, (weights, group))
            by_sizes.append(-along.detach())
            by_images.index_add_(0, places, -size * by_group)
            adjoint = adjoint - size * by_weights
    return Gradients(real_loss.detach(), by_images, torch.stack(by_sizes[::-1]))


def _walk(
    loss: Loss, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor, stretch: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """The weights before each step, images and size, of a stretch, and after its last."""
    trail = [weights_P]
    for places, size in stretch:
        weights = trail[-1].requires_grad_()
        (gradient,) = torch.autograd.grad(loss(weights, images_NCHW[places], labels_N[places]), weights)
        trail.append(weights.detach() - size * gradient)
    return trail


def shortened(gradient: Tensor, moments: Tensor, clock: Tensor) -> Tensor:
    """The gradient at no more than LONGEST times the expected length; one that is not finite counts for nothing.

    Training runs away from a few draws of weights, and the gradient through it is then 30 times the median or more.
    Adam would step along such a one alone, and its second moment, which remembers a thousand iterations, would keep all
    later steps small. Cut before they enter that moment, at most 1/LONGEST² of all are at the limit in the long run.
    """
    length = torch.linalg.vector_norm(gradient)
    limit = LONGEST * (moments[1].sum() / (1 - ADAM[1] ** clock)).sqrt()  # no number before the first step
    scale = torch.where((length > limit) & (limit > 0), limit / length, 1.0)
    return torch.where(length.isfinite(), scale * gradient, 0.0)


class Unrolled:
    """The state of a distillation run, and the step that advances it; all in float32, which two derivatives need."""

    def __init__(self, data: ImageData, recipe: UnrolledRecipe, run: Run, counts: list[int]) -> None:
        device, self.recipe, self.run = run.place.device, recipe, run
        self.store = ClassStore(data, device)
        with torch.device("meta"):  # only its shape is needed: weights are drawn
            network = networks.build(
                recipe.network, channels=data.channels, size=data.size, num_classes=data.num_classes
            )
        self.network = networks.batch_statistics(network)
        self.parameters = networks.Parameters(self.network, device, xavier=True)  # as the method's authors draw
        self.keys = {use: draws.make_key(run.seed, use, device=device) for use in ("network", "real")}

        starts_KICHW = initial_images(self.store, recipe.init, run.seed, max(counts))
        self.images_NCHW, self.labels_N = unpadded(starts_KICHW, counts), labels_of(counts).to(device)
        self.schedule = dealt(self.labels_N, recipe.steps, recipe.epochs)
        raw = math.log(math.expm1(recipe.step_size))  # softplus keeps step sizes above 0
        self.raw_sizes_T = torch.full((len(self.schedule),), raw, device=device)
        self.image_moments, self.size_moments = (
            torch.zeros(2, *values.shape, device=device) for values in (self.images_NCHW, self.raw_sizes_T)
        )
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one iteration to the next."""
        return {
            "images": self.images_NCHW,
            "step_sizes": self.raw_sizes_T,
            "image_moments": self.image_moments,
            "size_moments": self.size_moments,
            "losses": self.losses,
            "clock": self.clock,
        }

    def prepare(self) -> Callable[[int], None]:
        """The step, ready to run; made once the state stands where it will go on from."""
        step = accelerate(self.step, list(self.state.values()), self.run.place)
        return lambda _: step()

    def step(self) -> None:
        """One iteration: fresh weights, trained on the images, tested on a real batch; Adam on images and steps."""
        drawn = self.clock * 0 if self.recipe.fixed_network else self.clock
        uniform_P = draws.flat_uniform(self.keys["network"], drawn, self.parameters.num)
        places_B = self.store.choose_any(self.keys["real"], self.clock, self.recipe.batch)
        found = through_training(
            self.loss,
            self.parameters.initial(uniform_P),
            self.images_NCHW,
            self.labels_N,
            self.schedule,
            F.softplus(self.raw_sizes_T),
            (self.store.take(places_B), self.store.labels_N[places_B]),
        )
        lr = self.recipe.lr * 0.5 ** (self.clock * (NUM_HALVINGS + 1) // max(self.recipe.iterations, 1))
        by_raw_T = found.step_sizes_T * torch.sigmoid(self.raw_sizes_T)
        for values, gradient, moments in (
            (self.images_NCHW, found.images, self.image_moments),
            (self.raw_sizes_T, by_raw_T, self.size_moments),
        ):
            adam(values, shortened(gradient, moments, self.clock), moments, self.clock, lr)
        # Of a training that ran away the loss may be no number: the last one stands in its place.
        (before,) = self.losses.index_select(0, ((self.clock - 1) % len(self.losses)).view(1))
        tick(self.clock, self.losses, torch.where(found.loss.isfinite(), found.loss, before))

    def loss(self, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
        """Cross-entropy under these weights; not compiled nor by hand-written kernels, which have one derivative."""
        views = self.parameters.views(weights_P, weights_P.dtype)
        return F.cross_entropy(functional_call(self.network, views, (images_NCHW,)), labels_N)
