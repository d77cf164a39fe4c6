"""DANCE (Zhang et al., IJCAI 2024): networks between their initial and their trained state, and calibration.

Settings of the paper: partition with factor 2, 5 networks of 60 epochs, cross-entropy of the trained network with
weight 1, colour, crop and cutout together, pixels kept in their range. Digits have less calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

from condenset.methods.matching.dm import digits_calibration, make_variant
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe


@dataclass(frozen=True, kw_only=True)
class DANCERecipe(PartitionedRecipe):
    """Settings of DANCE, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    sampler: str = "interpolated"
    pool_size: int = 5
    calibration: float = 1.0


METHOD = make_variant(
    "dance",
    DANCERecipe,
    "DANCE: partitioned images matched in interpolated networks and calibrated by trained ones.",
    source="Zhang et al., IJCAI 2024",
    lr_per_image=PARTITIONED_LR,
    more_presets=digits_calibration,
)
