"""DM+: the best combination of the parts of the distribution-matching family that this project knows.

- Partition: an image holds four parts, or sixteen if there is one image per class and the images have 32 pixels.
- Colour at half the resolution of brightness, so that twice as many parts fit.
- Networks of all stages of their training, calibrated by a later stage.
- Color, crop, cutout and flip together, with scale and rotate from 64 pixels on.
- Few images per class need more calibration, and many a higher learning rate. Many classes need more calibration.
- The learning rate falls linearly, and the result is the mean of the images over the second half of the iterations.

The settings were chosen on training images that were held out; see docs/results/family.md.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from condenset.methods.common import default_partition
from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import presets as dm_presets
from condenset.methods.matching.recipe import DMRecipe
from condenset.training.protocol import DIGITS


@dataclass(frozen=True, kw_only=True)
class DMPlusRecipe(DMRecipe):
    """Settings of DM+, with the fields of `DMRecipe`."""

    sampler: str = "checkpoints"
    partition: int = 2
    decoder: str = "ycbcr"
    clamp: bool = True
    average: float = 0.5
    lr_decay: bool = True
    calibration: float = 1.0
    augment: str = "color+crop+cutout+flip"
    iterations: int = 10_000


LARGE_IMAGES = {
    "augment": "color+crop+cutout+flip+scale+rotate",  # 4 points above the default on TinyImageNet
    "batch_size": 128,  # as good as 256, in three quarters of the time
    "iterations": 4_000,
    "pool_size": 5,
    "pool_epochs": 30,
}


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return settings by set and image size, shorter runs for large images and sets, and settings of datasets."""
    settings: dict[str, Any] = {"calibration": calibration(ipc, dataset)}
    if dataset == "cifar100" and ipc > 10:
        settings["iterations"] = 5_000
    if size >= 64:
        settings |= LARGE_IMAGES
    if (dataset, size) == DIGITS:
        settings |= {**dm_presets(ipc, dataset, size), "iterations": 200}
    partition = default_partition(size, 4 if ipc == 1 and size >= 32 else 2)
    return {**settings, "lr": max(5.0, float(ipc)), "partition": partition, "decoder": "ycbcr"}


def calibration(ipc: int, dataset: str) -> float:
    """Return the weight of the calibration, which falls with the number of images and grows with that of classes."""
    if dataset == "tinyimagenet":
        return min(3.0, 30 / ipc)
    if dataset == "cifar100" and ipc > 10:
        return max(0.6, 10 / ipc)
    return min(3.0, 10 / ipc)


METHOD = dataclasses.replace(
    DM,
    name="dmplus",
    recipe=DMPlusRecipe,
    summary="DM+: the best combination of partition, trained networks, calibration and averaging.",
    source="",
    presets=presets,
    schedules={},
)
