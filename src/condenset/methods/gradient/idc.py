"""IDC: efficient synthetic-data parameterization (Kim, Kim, Oh, Yun, Song, Jeong, Ha and Song, ICML 2022).

Gradient matching with three changes: an image holds four images (partition), the networks train on real images, and the
distance of two gradients is the squared difference of the filters. Settings of the paper: 2,000 networks with 100 steps
each, 64 real images per class, color, crop and cutout together, learning rate 0.0005 per image of a class in pixels of
0..1, which are 0.0125 in normalised pixels. Between two steps, a network trains on 2,000 real images in batches of 64
with CutMix. The paper matches at most 128 decoded images per class and step; here all of them are matched.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from condenset.augment import STACKED_STRATEGY
from condenset.config import check_int_fields
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.partition import MAX_FACTOR
from condenset.engine.device import ComputeDevice
from condenset.methods.common import default_partition
from condenset.methods.gradient.dc import METHOD as DC
from condenset.methods.gradient.dc import digits_presets
from condenset.methods.gradient.distance import Gradients, squared_distance
from condenset.methods.gradient.gradient_matching import GradientMatching, solve
from condenset.methods.recipe import GradientMatchingRecipe
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer

TRAIN_BATCH, TRAIN_AUGMENT, CUTMIX = 64, "color+crop", 0.5


@dataclass(frozen=True, kw_only=True)
class IDCRecipe(GradientMatchingRecipe):
    """Settings of IDC.

    Attributes:
        outer_steps: Steps of the images with each network.
        inner_epochs: Trainings of the network between two of those steps.
        train_images: Real images, chosen at random, that the network sees in each training.
        partition: Divide every image into this number of parts per side. Each part decodes to a full image.
    """

    iterations: int = 2000
    outer_steps: int | None = 100
    inner_epochs: int | None = 1
    lr: float = 0.125
    batch_size: int = 64
    augment: str = STACKED_STRATEGY
    train_images: int = 2000
    partition: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int_fields(self, 1, "train_images")
        check_int_fields(self, 1, "partition", maximum=MAX_FACTOR)


class EfficientMatching(GradientMatching):
    """Gradient matching of partitioned images, with networks that train on real images."""

    distance_name = "squared gradient distance"
    recipe: IDCRecipe

    def __init__(self, data: ImageData, recipe: IDCRecipe, run: RunContext, counts: list[int]) -> None:
        super().__init__(data, recipe, run, counts)
        filters = {spec.name for spec in self.trainer.parameters.specs if len(spec.shape) == 4}
        self.filters = filters or {spec.name for spec in self.trainer.parameters.specs}

    def _make_trainer(self, data: ImageData, counts: list[int]) -> Trainer:
        """Return the trainer of the network: SGD with CutMix on the real images."""
        protocol = Protocol(
            network=self.recipe.network,
            lr=self.recipe.network_lr,
            batch_size=TRAIN_BATCH,
            augment=TRAIN_AUGMENT,
            cutmix=CUTMIX,
        )
        train_set = DeviceDataset.from_data(data, self.run.compute.device)
        return Trainer(self.recipe.network, train_set, protocol, self.run.compute)

    @property
    def learned(self) -> dict[str, Tensor]:
        """What is learned, and the momentum of the network."""
        return super().learned | {"network_velocity": self.trainer.velocity}

    @property
    def max_train_steps(self) -> int:
        """The steps on `train_images` images."""
        return min(self.trainer.steps_per_epoch, -(-self.recipe.train_images // TRAIN_BATCH))

    def sample_network(self, number: int = 0) -> None:
        """Sample a new network, which has no momentum yet."""
        super().sample_network(number)
        self.trainer.velocity.zero_()

    def distance(self, real: Gradients, synthetic: Gradients) -> Tensor:
        """Return the squared distance of the gradients of all filters."""
        return squared_distance({name: real[name] for name in real if name in self.filters}, synthetic).sum()

    def update(self, images_NCHW: Tensor, velocity: Tensor, gradient: Tensor) -> None:
        """Update images, and keep the pixels within their valid range."""
        super().update(images_NCHW, velocity, gradient)
        if self.data.whitening is None:
            self.parts.clamp_(images_NCHW)


def condense(data: ImageData, recipe: IDCRecipe, run: RunContext) -> CondensedSet:
    """Learn partitioned images by gradient matching with networks that train on real images."""
    return solve(EfficientMatching, data, recipe, run)


def check_recipe(data: ImageData, recipe: IDCRecipe, compute: ComputeDevice, memory_limit: int | None) -> None:
    """Refuse a partition that does not divide the image size."""
    recipe.layout.check_shape(data.channels, data.size, has_decoders=False)


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the learning rate, no partition for small images, and quick settings for the digits."""
    quick = digits_presets(ipc, dataset, size)
    return {
        "lr": 0.0125 * ipc,
        "partition": default_partition(size),
        **quick,
        **({"inner_epochs": 1, "train_images": 256} if quick else {}),
    }


METHOD = dataclasses.replace(
    DC,
    name="idc",
    recipe=IDCRecipe,
    condense=condense,
    summary="IDC: gradient matching of partitioned images, with networks that train on real images.",
    source="Kim et al., ICML 2022",
    presets=presets,
    tiny={**DC.tiny, "train_images": 64},
    check=check_recipe,
)
