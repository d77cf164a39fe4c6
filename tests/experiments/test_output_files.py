"""The files of every experiment, and that no part runs twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from condenset.data.image_data import Splits
from condenset.experiments import EXPERIMENTS, context, runner
from condenset.pipeline import condensing
from condenset.training.trainer import Trainer
from helpers.experiment_runs import PartRecorder, make_run, run_tiny


@pytest.mark.charts
@pytest.mark.usefixtures("fast_tiny")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_writes_its_files_and_repeats_nothing(
    name: str, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    run.progress = progress = PartRecorder()
    result = run_tiny(name, splits, tmp_path, run)
    assert result.records and result.table.rows
    assert all(len(row) == len(result.table.columns) for row in result.table.rows)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {"experiment", "dataset", "scale", "seed"} <= results[0].keys()
    assert {"device", "hardware", "precision", "version"} <= results[0].keys()
    header, _, table = (tmp_path / "table.md").read_text().partition("\n\n")
    title, _, note = header.partition(". ")
    assert re.fullmatch(rf"{name}: {splits.train.name}, .* per class, scale tiny; its numbers mean nothing", title)
    assert table == result.table.markdown() and ("±" in table) == note.startswith("Accuracies are in %")
    assert (tmp_path / "figure.png").exists()
    match = re.search(r"<!-- (.*), scale tiny -->", (tmp_path / "figure.svg").read_text())
    assert match and re.fullmatch(rf"{name}: {splits.train.name}, [\d, ]+ images? per class", match[1])
    progress.check_numbers(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("this part is complete")

    monkeypatch.setattr(context, "score_set", fail)
    monkeypatch.setattr(condensing, "METHODS", {})
    monkeypatch.setattr(Trainer, "__init__", fail)
    monkeypatch.setattr(runner, "save_chart", lambda figure, path: None)  # only to save time
    run_tiny(name, splits, tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == results
