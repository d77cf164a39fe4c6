"""KIP: learn images by kernel ridge regression with the kernel of a neural network.

Shapes: N synthetic images, B real images, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.config import check_bool_fields, check_int_fields, check_positive_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.errors import check_choice
from condenset.methods.common import (
    adam_step,
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_images,
    remove_padding,
)
from condenset.methods.problem import LearningProblem
from condenset.methods.recipe import INITS, TINY_NETWORK, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.regression.image_kernels import (
    ImageKernel,
    InfiniteKernel,
    KernelPair,
    RandomFeatureKernel,
    choose_rows_per_chunk,
)
from condenset.methods.regression.ld import solve_by_cholesky
from condenset.methods.regression.neural_kernels import KERNELS, LAYERS
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK

MAX_DEPTH = 50
FEATURES = "features"
KERNEL_NAMES = (*KERNELS, FEATURES)


@dataclass(frozen=True, kw_only=True)
class KIPRecipe(Recipe):
    """Settings of kernel inducing points.

    Attributes:
        kernel: "ntk", the neural tangent kernel of an infinitely wide network; "nngp", the kernel of its Gaussian
            process; or "features", that of the embeddings of random networks.
        layers: "conv" or "fc": the hidden layers of the infinitely wide network.
        depth: Number of hidden layers of the infinitely wide network.
        network: Spec of the random networks of the kernel "features".
        iterations: Number of iterations.
        lr: Learning rate of Adam.
        batch_size: Real images per iteration, of all classes together.
        ridge: Regularisation of the regression, relative to the mean of the kernel's diagonal.
        init: Start from "real" images or from "noise".
        learn_labels: Learn the targets of the regression too. The labels are then soft.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {**Recipe.choices, "kernel": KERNEL_NAMES, "layers": LAYERS}

    kernel: str = "ntk"
    layers: str = "conv"
    depth: int = 3
    network: str = "convnet"
    iterations: int = 3_000
    lr: float = 0.02
    batch_size: int = 1024
    ridge: float = 1e-3
    init: str = "real"
    learn_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_choice("kernel", self.kernel, KERNEL_NAMES)
        check_choice("layers", self.layers, LAYERS)
        check_int_fields(self, 1, "depth", maximum=MAX_DEPTH)
        check_positive_fields(self, "ridge")
        check_choice("init", self.init, INITS)
        check_bool_fields(self, "learn_labels")


def condense(data: ImageData, recipe: KIPRecipe, run: RunContext) -> CondensedSet:
    """Learn images by kernel ridge regression (Nguyen et al., ICLR 2021)."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = KernelInducingPoints(data, recipe, run, counts)
    seconds = problem.learn()
    labels = targets_to_labels(problem.targets_NK) if recipe.learn_labels else class_labels(counts)
    return build_condensed_set(problem.images_NCHW, labels, data, recipe, run, seconds)


def regression_loss(
    kernel_BN: Tensor, kernel_NN: Tensor, targets_NK: Tensor, real_targets_BK: Tensor, ridge: float
) -> Tensor:
    """Return ½‖Y − K_BN (K_NN + λI)⁻¹ Y_N‖² / B, the loss of a kernel ridge regression on real images.

    Args:
        kernel_BN: Kernel of real and synthetic images.
        kernel_NN: Kernel of the synthetic images.
        targets_NK: Targets of the synthetic images.
        real_targets_BK: Targets of the real images.
        ridge: λ relative to the mean of the diagonal of `kernel_NN`.
    """
    penalty = ridge * kernel_NN.diagonal().mean()
    factor = torch.linalg.cholesky_ex(kernel_NN + penalty * torch.eye(len(kernel_NN), device=kernel_NN.device)).L
    coefficients_NK = solve_by_cholesky(factor, targets_NK)
    return (real_targets_BK - kernel_BN @ coefficients_NK).square().sum() / (2 * len(real_targets_BK))


def centered_targets(labels_N: Tensor, num_classes: int) -> Tensor:
    """Return (N, K) one-hot targets minus their mean, so that a prediction of 0 favours no class."""
    return F.one_hot(labels_N, num_classes).float() - 1 / num_classes


def targets_to_labels(targets_NK: Tensor) -> Tensor:
    """Return (N, K) probabilities: the positive part of the targets, normalised."""
    positive_NK = (targets_NK + 1 / targets_NK.shape[1]).clamp(min=1e-6)
    return positive_NK / positive_NK.sum(1, keepdim=True)


class KernelInducingPoints(LearningProblem):
    """The state of a run and its step, in float32: the regression needs the small eigenvalues of the kernel."""

    recipe: KIPRecipe

    def __init__(self, data: ImageData, recipe: KIPRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run)
        device = run.compute.device
        self.store, self.num_classes = ClassStore(data, device), data.num_classes
        self.kernel = make_kernel(data, recipe, run, sum(counts))
        self.networks, self.real_key = self.kernel.networks, self.make_key("real")
        self.images_NCHW = remove_padding(initial_images(self.store, recipe.init, run.seed, max(counts)), counts)
        self.targets_NK = centered_targets(class_labels(counts).to(device), data.num_classes)
        self.moments, self.target_moments = (
            torch.zeros(2, *values.shape, device=device) for values in (self.images_NCHW, self.targets_NK)
        )

    @property
    def learned(self) -> dict[str, Tensor]:
        targets = {"targets": self.targets_NK, "target_moments": self.target_moments}
        return {"images": self.images_NCHW, "moments": self.moments, **targets}

    def step(self) -> None:
        """Run one iteration: sample real images, and update the images by Adam."""
        index_B = self.store.sample_indices(self.real_key, self.clock, self.recipe.batch_size)
        real = self.store.take_normalized(index_B)
        loss, by_images, by_targets = self.gradient(real, self.store.labels_N[index_B])
        adam_step(self.images_NCHW, by_images, self.moments, self.clock, self.recipe.lr)
        if self.recipe.learn_labels:
            adam_step(self.targets_NK, by_targets, self.target_moments, self.clock, self.recipe.lr)
        self.record_loss(loss)

    def gradient(self, real_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss on real images, and its gradients by the images and by the targets."""
        images = self.images_NCHW
        kernels = KernelPair(*(part.requires_grad_() for part in self.kernel.compute(self.clock, real_BCHW, images)))
        targets_NK = self.targets_NK.detach().requires_grad_()
        real_targets_BK = centered_targets(labels_B, self.num_classes)
        loss = regression_loss(*kernels, targets_NK, real_targets_BK, self.recipe.ridge)
        *by_kernels, by_targets = torch.autograd.grad(loss, (*kernels, targets_NK))
        by_images = self.kernel.differentiate(self.clock, real_BCHW, images, KernelPair(*by_kernels))
        return loss.detach(), by_images, by_targets


def make_kernel(data: ImageData, recipe: KIPRecipe, run: RunContext, num_images: int) -> ImageKernel:
    """Return the kernel of a recipe."""
    if recipe.kernel == FEATURES:
        return RandomFeatureKernel(recipe.network, data, run)
    num_positions = data.size**2 if recipe.layers == "conv" else 1
    rows_per_chunk = choose_rows_per_chunk(
        run.compute, run.memory_limit, num_images=num_images, num_positions=num_positions, depth=recipe.depth
    )
    return InfiniteKernel(recipe.kernel, recipe.layers, recipe.depth, run, rows_per_chunk)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits."""
    if (dataset, size) != DIGITS:
        return {}
    return {"layers": "fc", "iterations": 300, "batch_size": 256, "lr": 0.05, "network": DIGITS_NETWORK}


METHOD = Method(
    name="kip",
    recipe=KIPRecipe,
    condense=condense,
    summary="Kernel inducing points: learn images by kernel ridge regression with the kernel of a network.",
    source="Nguyen et al., ICLR 2021",
    presets=presets,
    tiny={"iterations": 5, "batch_size": 32, "depth": 1, "network": TINY_NETWORK},
)
