"""Dataset distillation: learn images and step sizes by differentiating through training on them.

Shapes: N synthetic images, T unrolled steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import check_choice
from condenset.methods.common import (
    build_condensed_set,
    images_per_class,
    initial_images,
    remove_padding,
)
from condenset.methods.recipe import INITS, TINY_NETWORK
from condenset.methods.registry import Method
from condenset.methods.unrolled.base import UnrolledProblem, UnrolledRecipe
from condenset.runs.context import RunContext
from condenset.training.protocol import DIGITS, DIGITS_NETWORK


@dataclass(frozen=True, kw_only=True)
class DDRecipe(UnrolledRecipe):
    """Settings of dataset distillation.

    Attributes:
        network: Spec of the network; the paper uses lenet for MNIST and FashionMNIST.
        init: Start from "real" images or from "noise".
    """

    removed_fields: ClassVar[Mapping[str, object]] = {"fixed_network": False}

    network: str = "alexnet_small"
    iterations: int = 20_000
    lr: float = 0.01
    init: str = "noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("init", self.init, INITS)


def condense(data: ImageData, recipe: DDRecipe, run: RunContext) -> CondensedSet:
    """Learn images and step sizes by dataset distillation (Wang et al., 2018)."""
    counts = images_per_class(data, recipe)
    run.compute.reset_peak_memory()
    problem = DatasetDistillation(data, recipe, run, counts)

    def result(seconds: float) -> CondensedSet:
        images_NCHW, labels_N, step_sizes_T = problem.images_NCHW, problem.labels_N, problem.step_sizes_T
        return build_condensed_set(images_NCHW, labels_N, data, recipe, run, seconds, step_sizes_T)

    return result(problem.learn(result))


class DatasetDistillation(UnrolledProblem):
    """The images of a distillation run and its step."""

    def __init__(self, data: ImageData, recipe: DDRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run, counts)
        self.images_NCHW = remove_padding(initial_images(self.store, recipe.init, run.seed, max(counts)), counts)
        self.image_moments = torch.zeros(2, *self.images_NCHW.shape, device=run.compute.device)

    @property
    def learned(self) -> dict[str, Tensor]:
        return {"images": self.images_NCHW, "image_moments": self.image_moments, **super().learned}

    def step(self) -> None:
        """Run one iteration: train sampled weights on the images, compute the loss on real images, update by Adam."""
        gradients = self.differentiate(self.images_NCHW)
        self.update(self.images_NCHW, gradients.images, self.image_moments)
        self.finish_step(gradients)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the paper's network for MNIST and FashionMNIST, and quick settings for the digits."""
    if dataset in ("mnist", "fashionmnist"):
        return {"network": "lenet"}
    if (dataset, size) != DIGITS:
        return {}
    return {
        "iterations": 75 if ipc >= 10 else 150,
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
    source="Wang et al., 2018",
    presets=presets,
    tiny={"network": TINY_NETWORK, "iterations": 5, "batch_size": 32, "epochs": 2, "steps": 2},
    network_fits_evaluation=False,  # networks without norm layers learn little except by the learned steps
)
