"""IDM (Zhao et al., CVPR 2023): partition, and networks that train on the synthetic images.

Settings of the paper: factor 2, a queue of 100 networks, cross-entropy with weight 0.5, one augmentation per draw.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import partitioned_presets
from condenset.methods.matching.recipe import DMRecipe


@dataclass(frozen=True, kw_only=True)
class IDMRecipe(DMRecipe):
    """Settings of IDM, with the fields of `DMRecipe`."""

    sampler: str = "queue"
    partition: int = 2
    calibration: float = 0.5
    iterations: int = 20_000


METHOD = dataclasses.replace(
    DM,
    name="idm",
    recipe=IDMRecipe,
    variant_of="dm",
    summary="IDM: partitioned images matched in a queue of networks that train on them.",
    presets=partitioned_presets,
    ipc_defaults=lambda ipc: {"lr": 0.2 * ipc},
    schedules={},
)
