"""Label distillation: real images stay as they are, their soft labels are learned.

Shapes: N images of the set, B other real ones, K classes, F features. The inner model is a ridge regression on the
features of a random network, so that training it is a closed form. It regresses the labels' logits, not their
probabilities: what a network trained by cross-entropy comes to say of an image is the logarithm of its label. Which
class a regression ranks first is the same for logits of any length, but a network hardly hears what a label says beside
a share of nearly 1: the set gets logits of the length at which its labels are as soft as asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import draws, networks
from condenset.data.store import ClassStore
from condenset.engine.memory import images_together
from condenset.engine.step import accelerate, forward_of
from condenset.methods.common import (
    NUM_LOSSES,
    adam,
    finished,
    images_per_class,
    initial_images,
    labels_of,
    tick,
    unpadded,
)
from condenset.methods.matching import embedding
from condenset.recipes import LabelRecipe
from condenset.runs import Run, iterate
from condenset.types import CondensedSet, ImageData

MOST_TOGETHER = 1024  # images in a pass on a GPU, which more would not make faster
FIRST_SHARE = 0.9  # of an image's label that is its own class at the start


def ld(data: ImageData, recipe: LabelRecipe, run: Run) -> CondensedSet:
    """Label distillation by ridge regression (Bohdal et al., 2020); the images are those of `random`."""
    counts = images_per_class(data, recipe)
    run.place.reset_peak_memory()
    problem = Labels(data, recipe, run, counts)
    seconds = iterate(run, problem.state, recipe.iterations, problem.prepare, f"ld, {recipe.ipc} a class")
    labels_NK = softened(problem.logits_NK, recipe.softness)
    return finished(problem.images_NCHW, labels_NK, data, "ld", recipe, run, seconds)


def ridge_prediction(small_NF: Tensor, wanted_NK: Tensor, others_BF: Tensor, ridge: float) -> Tensor:
    """(B, K) what ridge regression, with a free intercept, learns from the small set and says of the others.

    It minimises |ΦW − Y|² + ridge·s·|W|² over centred features Φ, s being their mean square norm; solved in the smaller
    of its two forms, images by images or features by features.
    """
    centre_F, mean_K = small_NF.mean(0), wanted_NK.mean(0)
    small_NF, others_BF, wanted_NK = small_NF - centre_F, others_BF - centre_F, wanted_NK - mean_K
    num, features = small_NF.shape
    weight = ridge * small_NF.square().sum(1).mean().clamp(min=1e-6)  # images all alike have nothing to learn from
    gram = small_NF @ small_NF.T if num <= features else small_NF.T @ small_NF
    factor = torch.linalg.cholesky_ex(gram + weight * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).L
    in_images = num <= features
    weights_FK = small_NF.T @ _solve(factor, wanted_NK) if in_images else _solve(factor, small_NF.T @ wanted_NK)
    return others_BF @ weights_FK + mean_K


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(factor, right, upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole


def softened(logits_NK: Tensor, softness: float) -> Tensor:
    """(N, K) on the host: probabilities of these logits, all lengthened alike so that the mean entropy of a row is that
    of K equal shares times `softness`, or as near to it as equal logits let it come.
    """
    double_NK = logits_NK.detach().cpu().double()  # not every device has it
    double_NK -= double_NK.mean(1, keepdim=True)
    double_NK /= double_NK.abs().amax().clamp(min=1e-12)
    wanted = softness * math.log(max(2, logits_NK.shape[1]))
    low, high = -10.0, 20.0  # of the logarithm of the length; entropy falls with it
    for _ in range(50):
        middle = (low + high) / 2
        entropy = torch.special.entr((math.exp(middle) * double_NK).softmax(1)).sum(1).mean()
        low, high = (middle, high) if entropy > wanted else (low, middle)
    return (math.exp(low) * double_NK).softmax(1).float()


class Labels:
    """The state of a label distillation run, and the step that advances it."""

    def __init__(self, data: ImageData, recipe: LabelRecipe, run: Run, counts: list[int]) -> None:
        device, self.recipe, self.run = run.place.device, recipe, run
        self.store = ClassStore(data, device)
        self.network = embedding(recipe.network, data)
        self.parameters = networks.Parameters(self.network, device)
        self.forward = forward_of(self.network, run.place)
        self.slice: int | None = None  # batch norm: all together
        if not networks.uses_batch_norm(self.network):
            image = (data.channels, data.size, data.size)
            self.slice = images_together(self.network, run.place, image) or MOST_TOGETHER
        self.keys = {use: draws.make_key(run.seed, use, device=device) for use in ("network", "real")}

        images_KICHW = initial_images(self.store, "real", run.seed, max(counts))
        self.images_NCHW = unpadded(images_KICHW, counts)
        ahead = math.log(FIRST_SHARE / (1 - FIRST_SHARE) * max(1, data.num_classes - 1))
        self.logits_NK = ahead * F.one_hot(labels_of(counts), data.num_classes).float().to(device)
        self.moments = torch.zeros(2, *self.logits_NK.shape, device=device)
        self.losses = torch.zeros(NUM_LOSSES, device=device)
        self.clock = torch.zeros((), dtype=torch.int64, device=device)

    @property
    def state(self) -> dict[str, Tensor]:
        """All that changes from one iteration to the next."""
        return {"logits": self.logits_NK, "moments": self.moments, "losses": self.losses, "clock": self.clock}

    def prepare(self) -> Callable[[int], None]:
        """The step, ready to run; made once the state stands where it will go on from."""
        step = accelerate(self.step, list(self.state.values()), self.run.place)
        return lambda _: step()

    def step(self) -> None:
        """One iteration: a fresh network's features, the closed form, one step of Adam."""
        uniform_P = draws.flat_uniform(self.keys["network"], self.clock, self.parameters.num)
        views = self.parameters.views(self.parameters.initial(uniform_P), self.run.place.dtype)
        places_B = self.store.choose_any(self.keys["real"], self.clock, self.recipe.batch)
        small_NF, real_BF = (self._embed(views, each) for each in (self.images_NCHW, self.store.take(places_B)))
        leaf = self.logits_NK.detach().clone().requires_grad_()
        loss = self.loss(small_NF, leaf, real_BF, self.store.labels_N[places_B])
        (gradient,) = torch.autograd.grad(loss, leaf)
        adam(self.logits_NK, gradient, self.moments, self.clock, self.recipe.lr)
        tick(self.clock, self.losses, loss)

    def loss(self, small_NF: Tensor, logits_NK: Tensor, real_BF: Tensor, real_B: Tensor) -> Tensor:
        """The cross-entropy of what the regression says of real images, whose classes are known."""
        return F.cross_entropy(ridge_prediction(small_NF, logits_NK, real_BF, self.recipe.ridge), real_B)

    @torch.no_grad()
    def _embed(self, views: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
        """(N, F) float32 features."""
        parts = images_NCHW.to(self.run.place.dtype).split(self.slice or len(images_NCHW))
        return torch.cat([self.forward(views, part).float() for part in parts])
