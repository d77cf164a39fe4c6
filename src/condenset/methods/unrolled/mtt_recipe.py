"""Settings of MTT, with the values that its authors published per dataset and number of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset import augment, networks
from condenset.config import check_int_fields, check_momentum_field, check_positive_fields
from condenset.data.image_data import ImageData
from condenset.errors import check, check_choice
from condenset.io.user_directories import absolute_path
from condenset.methods.pools.pool import check_pool_parent
from condenset.methods.recipe import INITS, Recipe
from condenset.training.protocol import DIGITS, DIGITS_NETWORK, Protocol

MAX_STEPS = 1000  # of a student
EXPERT_LR, EXPERT_BATCH_SIZE = 0.01, 256  # plain SGD, as the student

# The settings that the authors gave to DC-BENCH (Cui et al., NeurIPS 2022): steps, expert_epochs, max_start_epoch,
# student_batch, lr, step_size_lr, step_size, zca. Their own table has an lr of 1e5 for CIFAR-10 at 10, a misprint as
# they confirmed: the step size diverges.
PUBLISHED: dict[tuple[str, int], tuple[Any, ...]] = {
    ("cifar10", 1): (50, 2, 2, None, 1e2, 1e-7, 0.01, True),
    ("cifar10", 10): (30, 2, 20, None, 1e2, 1e-5, 0.001, True),
    ("cifar10", 50): (30, 2, 40, None, 1e3, 1e-5, 0.001, False),
    ("cifar100", 1): (20, 3, 20, None, 1e3, 1e-5, 0.01, True),
    ("cifar100", 10): (20, 2, 20, None, 1e3, 1e-5, 0.01, False),
    ("cifar100", 50): (80, 2, 40, 125, 1e3, 1e-5, 0.01, True),
    ("tinyimagenet", 1): (10, 2, 10, None, 1e4, 1e-4, 0.01, False),
    ("tinyimagenet", 10): (20, 2, 40, 200, 1e4, 1e-4, 0.01, False),
    ("tinyimagenet", 50): (20, 2, 40, 300, 1e4, 1e-4, 0.01, False),
}
PUBLISHED_FIELDS = (
    "steps",
    "expert_epochs",
    "max_start_epoch",
    "student_batch",
    "lr",
    "step_size_lr",
    "step_size",
    "zca",
)


@dataclass(frozen=True, kw_only=True)
class MTTRecipe(Recipe):
    """Settings of trajectory matching.

    Attributes:
        network: Spec of the network.
        iterations: Number of iterations.
        lr: Learning rate of the images.
        momentum: Momentum of the images and of the step size.
        steps: Steps of the student.
        student_batch: Synthetic images per step of the student. None: all.
        step_size: Initial step size of the student.
        step_size_lr: Learning rate of the step size.
        expert_epochs: Epochs of the expert between the weights that the student starts from and those to reach.
        max_start_epoch: The student starts from the weights of an expert before this epoch.
        pool_size: Number of experts.
        pool: A directory to store the experts in, which other runs use again. Empty: the directory of the run.
        init: Start from "real" images or from "noise".
        augment: Augmentation strategy of the student and of the experts.
    """

    network: str = "convnet"
    iterations: int = 5000
    lr: float = 1000.0
    momentum: float = 0.5
    steps: int = 20
    student_batch: int | None = None
    step_size: float = 0.01
    step_size_lr: float = 1e-5
    expert_epochs: int = 2
    max_start_epoch: int = 20
    pool_size: int = 100
    pool: str = ""
    init: str = "real"
    augment: str = augment.DEFAULT_STRATEGY

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int_fields(self, 0, "iterations")
        check_positive_fields(self, "lr", "step_size", "step_size_lr")
        check_momentum_field(self)
        check_int_fields(self, 1, "steps", maximum=MAX_STEPS)
        check_int_fields(self, 1, "expert_epochs", "max_start_epoch")
        check_int_fields(self, 1, "pool_size", maximum=1000)
        if self.student_batch is not None:
            check_int_fields(self, 1, "student_batch")
        if self.pool:  # absolute, because a run may be resumed from another directory
            object.__setattr__(self, "pool", absolute_path(self.pool))
        is_built_in = networks.has_default_init(self.network)
        check(is_built_in, "the network of mtt must be a spec of a built-in network", self.network)
        check_choice("init", self.init, INITS)
        augment.parse_strategy(self.augment)

    @property
    def num_epochs(self) -> int:
        """Epochs that the experts are trained for: up to the last weights that a student is to reach."""
        return self.max_start_epoch + self.expert_epochs - 1

    def expert_protocol(self, data: ImageData) -> Protocol:
        """Return how the experts are trained: by plain SGD, without momentum or weight decay."""
        protocol = Protocol(
            network=self.network,
            epochs=self.num_epochs,
            lr=EXPERT_LR,
            momentum=0.0,
            weight_decay=0.0,
            schedule="constant",
            batch_size=EXPERT_BATCH_SIZE,
            augment=self.augment,
        )
        return augment.remove_unused_flip(protocol, allow_hflip=data.allow_hflip)

    def identity(self) -> dict[str, Any]:
        """Return the settings without the directory of the experts, which does not change them."""
        return super().identity() | {"pool": ""}


def check_pool(recipe: MTTRecipe) -> None:
    """Raise a UserError if the experts cannot be stored where the recipe says."""
    if recipe.pool:
        check_pool_parent(Path(recipe.pool))


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the published settings for the nearest number of images, and quick settings for the digits."""
    if (dataset, size) == DIGITS:
        return {
            "network": DIGITS_NETWORK,
            "iterations": 20,
            "steps": 10,
            "max_start_epoch": 10,
            "pool_size": 3,
            "lr": 100.0,
        }
    sizes = [published for name, published in PUBLISHED if name == dataset]
    if not sizes:
        return {}
    nearest = min(sizes, key=lambda published: abs(published - ipc))
    return dict(zip(PUBLISHED_FIELDS, PUBLISHED[dataset, nearest], strict=True))
