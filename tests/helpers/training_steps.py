"""Record the training steps of all networks."""

from __future__ import annotations

import pytest
from torch import Tensor

from condenset.training.trainer import Trainer


def record_training_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the batch size of every training step from now on."""
    batch_sizes: list[int] = []
    step = Trainer._step

    def record_step(trainer: Trainer, offsets: Tensor, streams: Tensor) -> None:
        batch_sizes.append(len(offsets))
        step(trainer, offsets, streams)

    monkeypatch.setattr(Trainer, "_step", record_step)
    return batch_sizes
