"""Label distillation: select random real images and learn their soft labels.

The inner model is a ridge regression on the features of a random network, so its training has a closed form. The
regression predicts logits, not probabilities, because a network trained by cross-entropy predicts the logarithm of a
label. The class that a regression ranks first does not depend on the scale of the logits. A network, however, learns
little from the small shares of a label whose largest share is nearly 1. So the final logits are scaled until the labels
are as soft as the recipe asks.
Shapes: N images of the set, B further real images, K classes, F features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import networks
from condenset.config import check_positive_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.stores.class_store import ClassStore
from condenset.engine.memory import images_per_pass
from condenset.errors import check
from condenset.methods.common import (
    adam_step,
    build_condensed_set,
    class_labels,
    images_per_class,
    initial_images,
    remove_padding,
)
from condenset.methods.problem import LearningProblem
from condenset.methods.recipe import TINY_NETWORK, Recipe, check_learning_fields
from condenset.methods.registry import Method
from condenset.methods.samplers import build_on_meta, make_forward, sample_new_networks
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK

MAX_IMAGES_PER_PASS = 1024  # on a GPU; more images per pass would not be faster
INITIAL_SHARE = 0.9  # of the image's own class in its initial label


@dataclass(frozen=True, kw_only=True)
class LDRecipe(Recipe):
    """Settings of label distillation.

    Attributes:
        network: Spec of the network whose random initialisations give the features.
        iterations: Number of iterations.
        lr: Learning rate of Adam.
        batch_size: Real images per iteration, of all classes together.
        ridge: Regularisation of the regression, relative to the mean square of the features.
        softness: Mean entropy of the final labels, relative to that of uniform labels.
    """

    network: str = "convnet"
    iterations: int = 5_000
    lr: float = 0.01
    batch_size: int = 1024
    ridge: float = 0.01
    softness: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_positive_fields(self, "ridge", "softness")
        check(self.softness < 1, "softness must be a number below 1", self.softness)


def condense(data: ImageData, recipe: LDRecipe, run: RunContext) -> CondensedSet:
    """Learn soft labels by ridge regression (Bohdal et al., 2020) for the images that `random` selects."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = LabelDistillation(data, recipe, run, counts)
    seconds = problem.learn()
    labels_NK = soften_labels(problem.logits_NK, recipe.softness)
    return build_condensed_set(problem.images_NCHW, labels_NK, data, recipe, run, seconds)


def ridge_prediction(set_NF: Tensor, labels_NK: Tensor, other_BF: Tensor, ridge: float) -> Tensor:
    """Return (B, K) predictions for other images by a ridge regression with intercept, fitted to the set.

    It minimises |ΦW − Y|² + ridge·s·|W|² over centred features Φ, where s is their mean squared norm. The system is
    solved in the smaller of its two forms, (N, N) or (F, F).

    Args:
        set_NF: Features of the set.
        labels_NK: Labels of the set.
        other_BF: Features of the other images.
        ridge: Strength of the regularisation.
    """
    mean_F, mean_K = set_NF.mean(0), labels_NK.mean(0)
    set_NF, other_BF, labels_NK = set_NF - mean_F, other_BF - mean_F, labels_NK - mean_K
    num_images, num_features = set_NF.shape
    penalty = ridge * set_NF.square().sum(1).mean().clamp(min=1e-6)  # features of equal images are all 0
    dual = num_images <= num_features
    gram = set_NF @ set_NF.T if dual else set_NF.T @ set_NF
    factor = torch.linalg.cholesky_ex(gram + penalty * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).L
    solution = solve_by_cholesky(factor, labels_NK if dual else set_NF.T @ labels_NK)
    weights_FK = set_NF.T @ solution if dual else solution
    return other_BF @ weights_FK + mean_K


def solve_by_cholesky(factor: Tensor, right: Tensor) -> Tensor:
    """Solve a linear system, given the lower Cholesky factor of its matrix."""
    intermediate = torch.linalg.solve_triangular(factor, right, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(factor.mT, intermediate, upper=True)
    return solution


def soften_labels(logits_NK: Tensor, softness: float) -> Tensor:
    """Return (N, K) probabilities on the host, from logits scaled by one factor for all images.

    The factor makes the mean entropy of the labels equal to `softness` times that of uniform labels, or as near to it
    as the logits allow.
    """
    double_NK = logits_NK.detach().cpu().double()  # some devices have no float64
    double_NK -= double_NK.mean(1, keepdim=True)
    double_NK /= double_NK.abs().amax().clamp(min=1e-12)
    target = softness * math.log(max(2, logits_NK.shape[1]))
    low, high = -10.0, 20.0  # bounds of the logarithm of the factor; the entropy decreases with it
    for _ in range(50):
        middle = (low + high) / 2
        entropy = torch.special.entr((math.exp(middle) * double_NK).softmax(1)).sum(1).mean()
        low, high = (middle, high) if entropy > target else (low, middle)
    return (math.exp(low) * double_NK).softmax(1).float()


class LabelDistillation(LearningProblem):
    """The state of a label distillation run and its step."""

    recipe: LDRecipe

    def __init__(self, data: ImageData, recipe: LDRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run)
        device = run.compute.device
        self.store = ClassStore(data, device)
        self.network = build_on_meta(recipe.network, data, embedding=True)
        self.networks = sample_new_networks(recipe.network, data, run.seed, run.compute, embedding=True)
        self.forward, self.dtype = make_forward(self.network, self.networks, run.compute)
        self.images_per_pass: int | None = None  # all of them, which batch norm needs
        if not networks.uses_batch_norm(self.network):
            image = (data.channels, data.size, data.size)
            self.images_per_pass = images_per_pass(self.network, run.compute, image) or MAX_IMAGES_PER_PASS
        self.real_key = self.make_key("real")

        images_KICHW = initial_images(self.store, "real", run.seed, max(counts))
        self.images_NCHW = remove_padding(images_KICHW, counts)
        own_logit = math.log(INITIAL_SHARE / (1 - INITIAL_SHARE) * max(1, data.num_classes - 1))
        self.logits_NK = own_logit * F.one_hot(class_labels(counts), data.num_classes).float().to(device)
        self.moments = torch.zeros(2, *self.logits_NK.shape, device=device)

    @property
    def learned(self) -> dict[str, Tensor]:
        return {"logits": self.logits_NK, "moments": self.moments}

    def step(self) -> None:
        """Run one iteration: sample a network, fit the regression to its features, update the logits by Adam."""
        network = self.networks.sample(self.clock, self.dtype)
        index_B = self.store.sample_indices(self.real_key, self.clock, self.recipe.batch_size)
        set_NF, real_BF = (
            self._embed(network, images) for images in (self.images_NCHW, self.store.take_normalized(index_B))
        )
        leaf = self.logits_NK.detach().clone().requires_grad_()
        loss = self.loss(set_NF, leaf, real_BF, self.store.labels_N[index_B])
        (gradient,) = torch.autograd.grad(loss, leaf)
        adam_step(self.logits_NK, gradient, self.moments, self.clock, self.recipe.lr)
        self.record_loss(loss)

    def loss(self, set_NF: Tensor, logits_NK: Tensor, real_BF: Tensor, labels_B: Tensor) -> Tensor:
        """Return the cross-entropy of the regression's predictions for real images."""
        return F.cross_entropy(ridge_prediction(set_NF, logits_NK, real_BF, self.recipe.ridge), labels_B)

    @torch.no_grad()
    def _embed(self, network: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
        """Return (N, F) features in float32."""
        features, num_images = [], len(self.images_NCHW) + self.recipe.batch_size
        for batch in images_NCHW.to(self.dtype).split(self.images_per_pass or len(images_NCHW)):
            features.append(self.forward(network, batch).float())
            self.run.check_stop(len(batch) / num_images)
        return torch.cat(features)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the quick settings for the digits."""
    return {"iterations": 300, "batch_size": 512, "network": DIGITS_NETWORK} if (dataset, size) == DIGITS else {}


METHOD = Method(
    name="ld",
    recipe=LDRecipe,
    condense=condense,
    summary="Label distillation: keep random real images and learn their soft labels.",
    source="Bohdal et al., 2020",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 5, "batch_size": 32},
)
