"""DANCE (Zhang et al., IJCAI 2024): networks between their initial and their trained state, and calibration.

Settings of the paper: partition with factor 2, 5 networks of 60 epochs, cross-entropy of the trained network with
weight 1, colour, crop and cutout together, pixels kept in their range.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import partitioned_presets
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe


@dataclass(frozen=True, kw_only=True)
class DANCERecipe(PartitionedRecipe):
    """Settings of DANCE, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    sampler: str = "interpolated"
    pool_size: int = 5
    calibration: float = 1.0


METHOD = dataclasses.replace(
    DM,
    name="dance",
    recipe=DANCERecipe,
    variant_of="dm",
    summary="DANCE: partitioned images matched in interpolated networks and calibrated by trained ones.",
    presets=partitioned_presets,
    ipc_defaults=lambda ipc: {"lr": PARTITIONED_LR * ipc},
    schedules={},
)
