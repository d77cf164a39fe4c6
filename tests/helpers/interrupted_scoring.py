"""Score a set with small networks, interrupt it, and record what is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset.engine import ComputeDevice
from condenset.io.files import read_tensors
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from condenset.training.trainer import Trainer
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data
from helpers.training_steps import record_training_steps

CPU = ComputeDevice.select("cpu")
DATA, TEST = tiny_data([7, 7, 7]), tiny_data([9, 9, 9], seed=1)
OTHER_DATA = tiny_data([7, 7, 7], seed=5)
BATCH_NORM = "convnet(width=8, depth=2, norm='batch')"
NUM_STEPS = 9  # per network: three epochs of three steps


def make_protocol(**fields: Any) -> Protocol:
    return Protocol(**{"network": BATCH_NORM, "num_networks": 3, "epochs": 2, "batch_size": 8, **fields})


def make_run(directory: Path | None, **fields: Any) -> RunContext:
    return RunContext(**{"compute": CPU, "directory": directory, "job": "whole", **fields})


def score_until(directory: Path, step: int, **fields: Any) -> None:
    """Score a set, and stop when all networks together have done this number of steps."""
    run = make_run(directory, recipe={"lr": 1.0})  # the recipe of the set does not matter for its networks
    run.progress = StopAtStep(run, step)
    with pytest.raises(Interrupted):
        score_set(DATA, TEST, make_protocol(**fields), run)
    assert not run.stop.listening


def read_info(directory: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads(read_tensors(directory / "checkpoint")[1]["checkpoint"])
    return info


class TrainingRecorder:
    """Count the training steps, and record the states of networks when they are tested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batch_sizes, self.states = record_training_steps(monkeypatch), list[list[Tensor]]()
        predict = Trainer.predict

        def record_state(trainer: Trainer, *args: Any) -> Tensor:
            self.states.append([tensor.clone() for tensor in trainer.state.values()])
            return predict(trainer, *args)

        monkeypatch.setattr(Trainer, "predict", record_state)

    def pop(self) -> tuple[int, list[list[Tensor]]]:
        """Return the number of steps and the states since the last call."""
        result = len(self.batch_sizes), self.states
        self.batch_sizes.clear()
        self.states = []
        return result


def states_equal(first: list[list[Tensor]], second: list[list[Tensor]]) -> bool:
    pairs = [pair for states in zip(first, second, strict=True) for pair in zip(*states, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)
