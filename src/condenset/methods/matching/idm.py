"""IDM (Zhao et al., CVPR 2023): partition, and networks that train on the synthetic images.

Settings of the paper: factor 2, a queue of 100 networks, cross-entropy with weight 0.5, one augmentation per draw.
"""

from __future__ import annotations

from dataclasses import dataclass

from condenset.methods.matching.dm import make_variant
from condenset.methods.matching.recipe import DMRecipe


@dataclass(frozen=True, kw_only=True)
class IDMRecipe(DMRecipe):
    """Settings of IDM, with the fields of `DMRecipe`."""

    sampler: str = "queue"
    partition: int = 2
    calibration: float = 0.5
    iterations: int = 20_000


METHOD = make_variant(
    "idm",
    IDMRecipe,
    "IDM: partitioned images matched in a queue of networks that train on them.",
    source="Zhao et al., CVPR 2023",
    lr_per_image=0.2,
)
