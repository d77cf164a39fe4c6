"""NCFM (Wang et al., CVPR 2025): match the characteristic functions of the features.

Settings of the paper: partition with factor 2, 4,096 frequencies, 20 trained networks. Frequencies are standard normal;
the paper's optional network that learns them is left out.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from condenset.augment import STACKED_STRATEGY
from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import presets as dm_presets
from condenset.methods.matching.recipe import DMRecipe


@dataclass(frozen=True, kw_only=True)
class NCFMRecipe(DMRecipe):
    """Settings of NCFM, with the fields of `DMRecipe`."""

    objective: str = "characteristic(frequencies=4096)"
    sampler: str = "interpolated"
    pool_size: int = 20
    partition: int = 2
    clamp: bool = True
    calibration: float = 1.0
    augment: str = STACKED_STRATEGY
    batch_size: int = 128
    iterations: int = 10_000


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return quick settings for the digits: the frequencies take most of the time on a CPU."""
    preset = dm_presets(ipc, dataset, size)
    return preset | {"objective": "characteristic(frequencies=256)"} if "network" in preset else preset


METHOD = dataclasses.replace(
    DM,
    name="ncfm",
    recipe=NCFMRecipe,
    variant_of="dm",
    summary="NCFM: partitioned images matched by characteristic functions in trained networks.",
    presets=presets,
    tiny={**DM.tiny, "objective": "characteristic(frequencies=16)"},
    ipc_defaults=lambda ipc: {"lr": 0.25 * ipc},
)
