"""Small architectures to rank, and a record of the networks that are trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from condenset.engine import ComputeDevice
from condenset.training.trainer import Trainer

CPU = ComputeDevice.select("cpu")
GOOD, BAD = "convnet(width=8, depth=1)", "convnet(width=1, depth=3, norm='none', activation='sigmoid')"
FAST: dict[str, Any] = {"epochs": 2, "batch_size": 16, "augment": "none", "device": "cpu", "verbose": False}


def linear(channels: int, size: int, num_classes: int) -> nn.Module:
    """Build a linear classifier, as a user's builder."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, num_classes))


def record_trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of every network whose training begins from now on."""
    numbers: list[int] = []
    iter_train = Trainer.iter_train

    def record(self: Trainer, seed: int, *tags: str | int, **options: Any) -> Iterator[int]:
        numbers.append(int(tags[-1]))
        return iter_train(self, seed, *tags, **options)

    monkeypatch.setattr(Trainer, "iter_train", record)
    return numbers
