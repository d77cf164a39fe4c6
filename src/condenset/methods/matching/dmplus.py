"""DM+: the best combination of the parts of the distribution-matching family that this project knows.

- Partition: four images in one, and sixteen in one if there is one image per class and the images have 32 pixels.
- Networks of all stages of their training, calibrated by a later stage.
- Color, crop, cutout and flip together, and 256 real images per class.
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
    clamp: bool = True
    average: float = 0.5
    lr_decay: bool = True
    calibration: float = 1.0
    augment: str = "color+crop+cutout+flip"
    iterations: int = 10_000


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return settings by set and image size, shorter runs for large images and sets, and settings of datasets."""
    partition = default_partition(size, 4 if ipc == 1 and size >= 32 else 2)
    by_size = {"lr": max(5.0, float(ipc)), "partition": partition}
    large = {"calibration": max(0.6, 10 / ipc), "iterations": 5_000} if dataset == "cifar100" and ipc > 10 else {}
    shorter: dict[str, Any] = {"iterations": 3_000, "pool_size": 5, "pool_epochs": 30} if size >= 64 else {}
    quick = {**dm_presets(ipc, dataset, size), "iterations": 200} if (dataset, size) == DIGITS else {}
    return {"calibration": min(3.0, 10 / ipc), **large, **shorter, **quick, **by_size}


METHOD = dataclasses.replace(
    DM,
    name="dmplus",
    recipe=DMPlusRecipe,
    summary="DM+: the best combination of partition, trained networks, calibration and averaging.",
    source="",
    presets=presets,
    schedules={},
)
