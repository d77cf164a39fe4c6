"""An experiment that is done, as tiny as it can be, or all of it but the scoring."""

from __future__ import annotations

from pathlib import Path

import pytest

from condenset import Scores, experiments
from condenset.engine import Place
from condenset.experiments import common, perform
from condenset.recipes import Protocol
from condenset.runs import Run
from condenset.types import Splits


def tiny_run(folder: Path) -> Run:
    return Run(seed=1, place=Place.best("cpu"), folder=folder)


def go(name: str, splits: Splits, folder: Path, run: Run | None = None) -> experiments.Outcome:
    return perform(name, splits, run or tiny_run(folder), folder, dataset="tiny", scale="tiny")


def looked_at(monkeypatch: pytest.MonkeyPatch) -> dict[str, Protocol]:
    """The protocols that parts are scored by, which fills as an experiment goes on; each network's accuracy is new."""
    protocols: dict[str, Protocol] = {}

    def look(small: object, test: object, protocol: Protocol, run: Run, text: str) -> Scores:
        protocols[run.job] = protocol
        accuracies = tuple((len(protocols) + net) / 100 for net in range(protocol.nets))
        return Scores(accuracies=accuracies, network="none", seconds=1.0)

    monkeypatch.setattr(common, "score", look)
    return protocols
