"""Types of the keywords that become fields of a protocol, for editors and type checkers."""

from __future__ import annotations

from typing import TypedDict

from condenset.networks import NetworkBuilder


class TrainingOptions(TypedDict, total=False):
    """Fields of a protocol that decide how one network is trained."""

    augment: str
    batch_size: int
    cutmix: float
    epochs: int
    lr: float
    momentum: float
    schedule: str
    steps: int | None
    weight_decay: float


class ProtocolOptions(TrainingOptions, total=False):
    """All fields of a protocol, as keywords of `evaluate`."""

    learned_steps: bool
    network: str | NetworkBuilder
    num_networks: int
