"""M3D (Zhang et al., AAAI 2024): match all moments of the features by a kernel.

Settings of the paper: partition with factor 2, Gaussian kernels of five bandwidths, random networks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import partitioned_presets
from condenset.methods.matching.recipe import DMRecipe


@dataclass(frozen=True, kw_only=True)
class M3DRecipe(DMRecipe):
    """Settings of M3D, with the fields of `DMRecipe`."""

    objective: str = "kernel(bandwidths=5)"
    partition: int = 2
    iterations: int = 10_000


METHOD = dataclasses.replace(
    DM,
    name="m3d",
    recipe=M3DRecipe,
    variant_of="dm",
    summary="M3D: partitioned images matched under Gaussian kernels of several bandwidths.",
    presets=partitioned_presets,
    ipc_defaults=lambda ipc: {"lr": 10.0 * ipc},
    schedules={},
)
