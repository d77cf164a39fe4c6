"""DCC: gradient matching over all classes jointly (Lee, Chun, Jung, Yun and Yoon, ICML 2022).

DC matches the gradient of each class by itself. What the classes have in common then dominates. DCC sums the gradients
of all classes before it matches them, so that differences between classes count.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from condenset.config import check_non_negative_field
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.engine.memory import split_evenly
from condenset.errors import check
from condenset.methods.gradient.chunks import Chunk
from condenset.methods.gradient.dc import METHOD as DC
from condenset.methods.gradient.dc import digits_presets
from condenset.methods.gradient.gradient_matching import GradientMatching, solve
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.networks.gradients import joint_gradients
from condenset.runs.context import RunContext


@dataclass(frozen=True, kw_only=True)
class DCCRecipe(GradientMatchingRecipe):
    """Settings of gradient matching over all classes jointly.

    The steps are those of DC. For the variant DSAC of the paper, set `augment` and `init` as in `DSARecipe`.

    Attributes:
        lr: Learning rate of the images, ten times that of DC: an image has a smaller share in the joint gradient.
        warmup: The share of the networks, the first ones, that are not trained between two steps of the images. The
            paper introduces such a warm-up to stabilise the start. Its length is a choice of this project.

    Further fields: `outer_steps`, `inner_epochs` and `network_lr` (see `GradientMatchingRecipe`); `network`,
    `iterations`, `lr`, `momentum`, `batch_size`, `init` and `augment` (see `MatchingRecipe`); `ipc` and `allow_fewer`
    (see `Recipe`).
    """

    init: str = "noise"
    augment: str = "none"
    lr: float = 1.0
    warmup: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_non_negative_field(self, "warmup")
        check(self.warmup <= 1, "warmup must be a share, from 0 to 1", self.warmup)


class JointGradientMatching(GradientMatching):
    """Gradient matching with one gradient for all classes.

    All synthetic images pass through the network at once. Real images, which are many more, pass in chunks of classes.
    """

    distance_name = "joint gradient distance"
    differentiates_weights = True
    recipe: DCCRecipe

    def split_classes(self, counts: list[int], max_classes: int) -> list[Chunk]:
        """Return one chunk with all classes."""
        self.real_parts = split_evenly(len(counts), max_classes)
        return super().split_classes(counts, len(counts))

    def compute_gradients(self, *args: Any, create_graph: bool = False) -> dict[str, Tensor]:
        """Return the gradient of the loss of all classes."""
        return joint_gradients(self.forward, *args, create_graph=create_graph)

    def differentiate_real(self, real_KBCHW: Tensor, chunk: Chunk) -> dict[str, Tensor]:
        """Return the gradient of the real images of all classes."""
        parts = []
        for part in self.real_parts:
            arguments = real_KBCHW[part], chunk.classes_K[part], chunk.real_weight_KB[part]
            parts.append(self.real(self.trainer.weights, self.buffers, *arguments))
            self._check_stop()
        return {name: torch.stack([gradients[name] for gradients in parts]).sum(0) for name in parts[0]}

    @property
    def num_parts(self) -> int:
        """The number of chunks of real images and of steps of the network in a step."""
        return len(self.real_parts) + super().num_parts

    def trains_network(self, number: int) -> bool:
        """Return whether the warm-up is over."""
        return number >= self.recipe.warmup * self.recipe.image_steps


def condense(data: ImageData, recipe: DCCRecipe, run: RunContext) -> CondensedSet:
    """Learn images by gradient matching over all classes jointly."""
    return solve(JointGradientMatching, data, recipe, run)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the quick settings for the digits; images that start from noise need a larger learning rate."""
    quick = digits_presets(ipc, dataset, size)
    return quick | {"lr": 10.0} if quick else {}


METHOD = dataclasses.replace(
    DC,
    name="dcc",
    recipe=DCCRecipe,
    condense=condense,
    summary="DCC: gradient matching over all classes jointly, with the differences between classes.",
    presets=presets,
)
