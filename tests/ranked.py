"""Small architectures to rank, and what is trained of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import nn

from condenset.engine import Place
from condenset.train import Trainer

CPU = Place.best("cpu")
GOOD, BAD = "convnet(width=8, depth=1)", "convnet(width=1, depth=3, norm='none', activation='sigmoid')"
FAST = {"epochs": 2, "batch": 16, "augment": "none", "device": "cpu"}


def linear(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, num_classes))


def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the networks that are trained from now on."""
    numbers: list[int] = []
    first = Trainer.training

    def noted(self: Trainer, seed: int, *tags: str | int, **more: object) -> Iterator[int]:
        numbers.append(int(tags[-1]))
        return first(self, seed, *tags, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Trainer, "training", noted)
    return numbers
