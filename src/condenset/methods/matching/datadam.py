"""DataDAM (Sajedi et al., ICCV 2023): match where the earlier blocks of networks respond.

Settings of the paper: attention maps of the power 4 in all blocks but the last, with
weight 100 relative to the embedding, random networks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from condenset.methods.matching.dm import METHOD as DM
from condenset.methods.matching.dm import presets as dm_presets
from condenset.methods.matching.recipe import DMRecipe
from condenset.training.protocol import DIGITS


@dataclass(frozen=True, kw_only=True)
class DataDAMRecipe(DMRecipe):
    """Settings of DataDAM, with the fields of `DMRecipe`."""

    features: str = "attention"
    iterations: int = 8_000


def presets(ipc: int, dataset: str, size: int) -> dict[str, Any]:
    """Return the learning rate of dm, and its quick settings for the digits."""
    fields = dm_presets(ipc, dataset, size)
    return fields if (dataset, size) == DIGITS else {"lr": fields["lr"]}


METHOD = dataclasses.replace(
    DM,
    name="datadam",
    recipe=DataDAMRecipe,
    variant_of="dm",
    summary="DataDAM: match the attention maps of the earlier blocks in random networks.",
    source="Sajedi et al., ICCV 2023",
    presets=presets,
    schedules={},
)
