"""Differentiate through the training of a network by gradient descent, with the graph of one step at a time.

Shapes: N synthetic images, P parameters of the network, T training steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from condenset.engine import ComputeDevice
from condenset.engine.compile import compile_second_order
from condenset.engine.memory import split_evenly

MAX_STORED_BYTES = 256 << 20  # of the weights before all steps; with more, some are computed again

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # (weights_P, images, labels) -> loss
Objective = Callable[[Tensor], Tensor]  # weights_P after the training -> loss
AfterStep = Callable[[float], None]  # share of all steps
Steps = Sequence[tuple[Tensor, Tensor]]  # indices of the images and step size of each training step


class Gradients(NamedTuple):
    """The loss of the weights after training, and its gradients by the images and the step sizes."""

    loss: Tensor
    images: Tensor
    step_sizes_T: Tensor


class TrainingStep:
    """The gradients of a step of training.

    Args:
        loss: The loss of given weights on given images and labels.
        compute: Compile the gradients for this device. The loss must then read nothing but its arguments.
        name: Losses of the same name compute the same, see `compile_second_order`.
    """

    def __init__(self, loss: Loss, compute: ComputeDevice | None = None, name: str = "") -> None:
        self.loss = loss
        self.gradient: Callable[..., Tensor] = functools.partial(_gradient, loss)
        self.differentiate: Callable[..., tuple[Tensor, Tensor, Tensor]] = functools.partial(_differentiate, loss)
        if compute is not None:
            self.gradient = compile_second_order(self.gradient, compute, f"gradient, {name}")
            self.differentiate = compile_second_order(self.differentiate, compute, f"second gradient, {name}")


def _gradient(loss: Loss, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor) -> Tensor:
    """Return the gradient of the loss by the weights."""
    weights_P = weights_P.detach().requires_grad_()
    (gradient_P,) = torch.autograd.grad(loss(weights_P, images_NCHW, labels_N), weights_P)
    return gradient_P


def _differentiate(
    loss: Loss, weights_P: Tensor, images_NCHW: Tensor, labels_N: Tensor, adjoint_P: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the product of that gradient and the adjoint, and its gradients by the weights and the images."""
    weights_P, images_NCHW = weights_P.detach().requires_grad_(), images_NCHW.detach().requires_grad_()
    value = loss(weights_P, images_NCHW, labels_N)
    (gradient_P,) = torch.autograd.grad(value, weights_P, create_graph=True)
    product = gradient_P @ adjoint_P
    by_weights_P, by_images_NCHW = torch.autograd.grad(product, (weights_P, images_NCHW))
    return product.detach(), by_weights_P, by_images_NCHW


def differentiate_training(
    step: TrainingStep,
    weights_P: Tensor,
    images_NCHW: Tensor,
    labels_N: Tensor,
    schedule: Sequence[Tensor],
    step_sizes_T: Tensor,
    objective: Objective,
    after_step: AfterStep = lambda _: None,
) -> Gradients:
    """Train by gradient descent, and differentiate a loss of the final weights by the images and the step sizes.

    The backward pass builds the graph of one step at a time. The forward pass stores the weights before every step. If
    they take too much memory, it stores those before each of about √T segments of steps, and the backward pass computes
    the weights within a segment again. With λ the gradient by the weights after a step of size η and loss l, a step
    gives λ ← λ − η ∂²l/∂w² λ. The gradient by its images is −η ∂²l/∂x∂w λ, and the gradient by its size is −∂l/∂w · λ.

    Args:
        step: A step of the training.
        weights_P: Initial weights.
        images_NCHW: Synthetic images.
        labels_N: Their labels.
        schedule: Indices of the images of every step.
        step_sizes_T: Size of every step.
        objective: The loss of the weights after the last step.
        after_step: Called after every step, forward, repeated or backward, with its share of all of them.
    """
    steps = list(zip(schedule, step_sizes_T.detach().unbind(), strict=True))
    max_length = 1 if len(steps) * weights_P.nbytes <= MAX_STORED_BYTES else math.isqrt(len(steps))
    segments = [steps[part] for part in split_evenly(len(steps), max_length)]
    num_repeated = len(steps) - len(segments)
    report = functools.partial(after_step, 1 / (2 * len(steps) + num_repeated + 1))  # 1: the loss at the end
    segment_starts = [weights_P.detach()]
    for segment in segments:
        segment_starts.append(_train(step, segment_starts[-1], images_NCHW, labels_N, segment, report)[-1])
    weights = segment_starts.pop().requires_grad_()
    final_loss = objective(weights)
    (adjoint,) = torch.autograd.grad(final_loss, weights)
    by_images, by_sizes = torch.zeros_like(images_NCHW), []
    for segment in reversed(segments):
        trajectory = _train(step, segment_starts.pop(), images_NCHW, labels_N, segment[:-1], report)
        for index, size in reversed(segment):
            product, by_weights, by_batch = step.differentiate(
                trajectory.pop(), images_NCHW[index], labels_N[index], adjoint
            )
            by_sizes.append(-product)
            by_images.index_add_(0, index, -size * by_batch)
            adjoint = adjoint - size * by_weights
            report()
    return Gradients(final_loss.detach(), by_images, torch.stack(by_sizes[::-1]))


def _train(
    step: TrainingStep,
    weights_P: Tensor,
    images_NCHW: Tensor,
    labels_N: Tensor,
    steps: Steps,
    report: Callable[[], None],
) -> list[Tensor]:
    """Return the weights before each step, and those after the last."""
    trajectory = [weights_P]
    for index, size in steps:
        gradient = step.gradient(trajectory[-1], images_NCHW[index], labels_N[index])
        trajectory.append(trajectory[-1] - size * gradient)
        report()
    return trajectory
