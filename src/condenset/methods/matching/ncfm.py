"""NCFM (Wang et al., CVPR 2025): match the characteristic functions of the features.

Settings of the paper: partition with factor 2, 4,096 frequencies, 20 trained networks. Frequencies are standard normal;
the paper's optional network that learns them is left out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import partitioned_presets
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe


@dataclass(frozen=True, kw_only=True)
class NCFMRecipe(PartitionedRecipe):
    """Settings of NCFM, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    objective: str = "characteristic(frequencies=4096)"
    sampler: str = "interpolated"
    pool_size: int = 20
    calibration: float = 1.0


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits: the frequencies take most of the time on a CPU."""
    preset = partitioned_presets(ipc, dataset, size)
    return preset | {"objective": "characteristic(frequencies=256)"} if "network" in preset else preset


METHOD = dataclasses.replace(
    DM,
    name="ncfm",
    recipe=NCFMRecipe,
    variant_of="dm",
    summary="NCFM: partitioned images matched by characteristic functions in trained networks.",
    presets=presets,
    tiny={**DM.tiny, "objective": "characteristic(frequencies=16)"},
    ipc_defaults=lambda ipc: {"lr": PARTITIONED_LR * ipc},
    schedules={},
)
