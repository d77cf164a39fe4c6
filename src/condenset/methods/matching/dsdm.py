"""DSDM (Li et al., ACM MM 2024): match mean and covariance of the features.

Settings of the paper: partition with factor 2, covariances with weight 50, states from the training of networks.
"""

from __future__ import annotations

from dataclasses import dataclass

from condenset.methods.matching.dm import make_variant
from condenset.methods.matching.recipe import PARTITIONED_LR, PartitionedRecipe


@dataclass(frozen=True, kw_only=True)
class DSDMRecipe(PartitionedRecipe):
    """Settings of DSDM, with the fields of `DMRecipe` and the defaults of `PartitionedRecipe`."""

    objective: str = "covariance(weight=50)"
    sampler: str = "checkpoints"


METHOD = make_variant(
    "dsdm",
    DSDMRecipe,
    "DSDM: partitioned images matched by mean and covariance in trained networks.",
    source="Li et al., ACM MM 2024",
    lr_per_image=PARTITIONED_LR,
)
