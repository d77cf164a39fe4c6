"""NCFM (Wang et al., CVPR 2025): match the characteristic functions of the features.

Settings of the paper: partition with factor 2, 4,096 frequencies, 20 trained networks. Frequencies are standard normal;
the paper's optional network that learns them is left out. Digits have their own settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import digits_calibration, make_variant
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe
from condenset.training.protocol import DIGITS


@dataclass(frozen=True, kw_only=True)
class NCFMRecipe(PartitionedRecipe):
    """Settings of NCFM, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    objective: str = "characteristic(frequencies=4096)"
    sampler: str = "interpolated"
    pool_size: int = 20
    calibration: float = 1.0


def more_presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits: smaller steps, and few frequencies, which take most of the time."""
    if (dataset, size) != DIGITS:
        return {}
    quick = {"objective": "characteristic(frequencies=256)", "lr": 0.05 * ipc}
    return {**quick, **digits_calibration(ipc, dataset, size)}


METHOD = make_variant(
    "ncfm",
    NCFMRecipe,
    "NCFM: partitioned images matched by characteristic functions in trained networks.",
    source="Wang et al., CVPR 2025",
    lr_per_image=PARTITIONED_LR,
    more_presets=more_presets,
    tiny={**DM.tiny, "objective": "characteristic(frequencies=16)"},
)
