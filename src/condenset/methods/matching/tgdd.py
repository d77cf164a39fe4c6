"""TGDD (Ran et al., 2025): networks from all stages of their training, calibrated by a later stage.

Settings of the paper: partition with factor 2, states of networks of 60 epochs, cross-entropy of a state up to a tenth
of the training later, with weight 2.5 up to 10 images per class and 0.5 above. Digits have less.
"""

from __future__ import annotations

from dataclasses import dataclass

from condenset.methods.matching.dm import digits_calibration, make_variant
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe


@dataclass(frozen=True, kw_only=True)
class TGDDRecipe(PartitionedRecipe):
    """Settings of TGDD, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    sampler: str = "checkpoints"


METHOD = make_variant(
    "tgdd",
    TGDDRecipe,
    "TGDD: partitioned images matched in and calibrated by networks at all stages of their training.",
    source="Ran et al., 2025",
    lr_per_image=PARTITIONED_LR,
    more_presets=lambda ipc, dataset, size: {
        "calibration": 2.5 if ipc <= 10 else 0.5,
        **digits_calibration(ipc, dataset, size),
    },
)
