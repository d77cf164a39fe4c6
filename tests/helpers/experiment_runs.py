"""Run experiments at the scale `tiny`, with or without the scoring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from condenset import Scores
from condenset.data.image_data import Splits
from condenset.engine import ComputeDevice
from condenset.experiments import ExperimentResult, context, continual, run_experiment, sets
from condenset.experiments.config import ExperimentConfig
from condenset.io.progress import NullProgress
from condenset.runs.context import RunContext
from condenset.training.protocol import Protocol


class PartRecorder(NullProgress):
    """Record the part that the progress display is set to, such as 3/21."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def __setattr__(self, name: str, value: object) -> None:
        if name == "job_label":
            self.parts.append(str(value))
        super().__setattr__(name, value)

    def check_numbers(self, directory: Path) -> None:
        """Check that every part of an experiment was shown as NUMBER/TOTAL."""
        num_parts = len(list((directory / "parts").iterdir()))
        numbers = [tuple(map(int, part.split("/"))) for part in self.parts if part]
        assert {total for _, total in numbers} == {num_parts}
        assert min(number for number, _ in numbers) >= 1 and max(number for number, _ in numbers) == num_parts


def make_run(directory: Path) -> RunContext:
    """Return a run on the CPU."""
    return RunContext(seed=1, compute=ComputeDevice.select("cpu"), directory=directory)


def run_tiny(
    name: str, splits: Splits, directory: Path, run: RunContext | None = None, **settings: Any
) -> ExperimentResult:
    """Run an experiment at the scale `tiny`; settings: fields of ExperimentConfig."""
    config = ExperimentConfig(**{"experiment": name, "dataset": "tiny", "scale": "tiny", **settings})
    return run_experiment(config, splits, run or make_run(directory))


def skip_scoring(monkeypatch: pytest.MonkeyPatch) -> dict[str, Protocol]:
    """Replace the scoring of sets; return the protocols by part, filled as the experiment runs.

    The first network of part n has the accuracy n %, and each further network 1 % more.
    """
    protocols: dict[str, Protocol] = {}

    def score_set(train_set: object, test_set: object, protocol: Protocol, run: RunContext, _: str) -> Scores:
        protocols[run.job] = protocol
        accuracies = tuple((len(protocols) + number) / 100 for number in range(protocol.num_networks))
        return Scores(accuracies=accuracies, network="none", seconds=1.0)

    monkeypatch.setattr(context, "score_set", score_set)
    for module in (sets, continual):
        monkeypatch.setattr(module, "score_together", lambda requests, run: None)
    return protocols
