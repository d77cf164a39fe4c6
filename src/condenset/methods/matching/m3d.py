"""M3D (Zhang et al., AAAI 2024): match all moments of the features by a kernel.

Settings of the paper: partition with factor 2, Gaussian kernels of five bandwidths, random networks.
"""

from __future__ import annotations

from dataclasses import dataclass

from condenset.methods.matching.dm import make_variant
from condenset.methods.matching.recipe import DMRecipe


@dataclass(frozen=True, kw_only=True)
class M3DRecipe(DMRecipe):
    """Settings of M3D, with the fields of `DMRecipe`."""

    objective: str = "kernel(bandwidths=5)"
    partition: int = 2
    iterations: int = 10_000


METHOD = make_variant(
    "m3d",
    M3DRecipe,
    "M3D: partitioned images matched under Gaussian kernels of several bandwidths.",
    source="Zhang et al., AAAI 2024",
    lr_per_image=10.0,
)
