"""The settings that generative models share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from condenset import augment
from condenset.config import check_int_fields
from condenset.methods.recipe import Recipe, check_learning_fields

MAX_WIDTH = 4096
SET_FIELDS = ("ipc", "allow_fewer", "zca")  # they concern the set, but not the training of the generator


@dataclass(frozen=True, kw_only=True)
class GenerativeRecipe(Recipe):
    """Settings of generative models.

    Attributes:
        iterations: Number of training steps of the generator.
        lr: Learning rate of Adam. It falls linearly to 0.
        batch_size: Real images per step.
        width: Channels of the hidden layers.
    """

    iterations: int = 20_000
    lr: float = 2e-4
    batch_size: int = 128
    width: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_fields(self)
        check_int_fields(self, 1, "width", maximum=MAX_WIDTH)

    def training_fields(self) -> dict[str, Any]:
        """Return the settings that decide the generator: sets of all sizes are drawn from the same one."""
        return {name: value for name, value in self.to_dict().items() if name not in SET_FIELDS}


@dataclass(frozen=True, kw_only=True)
class AdversarialRecipe(GenerativeRecipe):
    """Settings of models with a discriminator.

    Attributes:
        augment: Augmentation of the images that the discriminator compares, real and generated.
    """

    augment: str = "flip+crop+cutout"  # of Zhao et al. for CIFAR, who mirror the real images beforehand

    def __post_init__(self) -> None:
        super().__post_init__()
        augment.parse_strategy(self.augment)
