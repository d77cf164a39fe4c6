"""On an engine, the sets of an experiment are condensed at the same time, and scored at the same time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import CondensedSet
from condenset.data.image_data import Splits
from helpers.experiment_runs import make_run, run_tiny, skip_scoring
from helpers.recording_engine import RecordingEngine

pytestmark = pytest.mark.usefixtures("fast_tiny")


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("batchnorm", {"methods": ("random",), "num_sets": 2}, {"random-instance", "random-batch-set2"}),
        ("architectures", {"methods": ("random", "dm")}, {"random-ConvNet", "dm-ConvNet", "dm-MLP"}),
        ("nas", {"methods": ("random", "dm")}, {"random", "dm"}),
        ("distribution", {"methods": ("random", "dm")}, {"random-2", "dm-2"}),
        ("continual", {"methods": ("random", "dm")}, {"random-2-0-1", "random-2-0-2", "dm-3-0-1", "dm-3-0-3"}),
    ],
)
def test_all_sets_are_tasks_of_one_call(
    name: str,
    settings: dict[str, Any],
    parts: set[str],
    splits: Splits,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_scoring(monkeypatch)
    run = make_run(tmp_path / "engine")
    run.engine = engine = RecordingEngine()
    run_tiny(name, splits, tmp_path / "engine", run, **settings)
    calls = [{task.partition(":")[0] for task in tasks} for tasks in engine.names]
    assert [call >= parts for call in calls if call & parts] == [True]
    run_tiny(name, splits, tmp_path / "local", **settings)
    for path in (tmp_path / "local" / "parts").glob("*/condensed.safetensors"):
        whole, divided = (
            CondensedSet.load(file) for file in (path, tmp_path / "engine/parts" / path.parent.name / path.name)
        )
        torch.testing.assert_close(divided.images, whole.images)


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("sota", {"methods": ("random", "dm"), "num_sets": 2}, {"random-1", "dm-2", "dm-2-set2", "whole"}),
        ("batchnorm", {"methods": ("random",), "num_sets": 2}, {"random-instance", "random-batch-set2"}),
        ("architectures", {"methods": ("random",)}, {"random-ConvNet-ConvNet", "random-ConvNet-MLP"}),
        ("networks", {}, {"dm-1-random", "dm-1-all"}),
        ("cost", {"methods": ("dm", "dsa")}, {"dm-1-1", "dsa-1-1"}),
        ("family", {"methods": ("random",), "num_sets": 2}, {"random-1-paper", "random-1-modern-set2"}),
        ("continual", {"methods": ("random", "dm")}, {"random-2-0-1", "random-2-0-2", "dm-3-0-1", "dm-3-0-3"}),
    ],
)
def test_all_scores_are_tasks_of_one_call(
    name: str, settings: dict[str, Any], parts: set[str], splits: Splits, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "engine")
    run.engine = engine = RecordingEngine()
    divided = run_tiny(name, splits, tmp_path / "engine", run, **settings)
    assert [call >= parts for call in engine.scored_jobs()] == [True]
    local = run_tiny(name, splits, tmp_path / "local", **settings)
    accuracies = [[record.get("accuracies") for record in result.records] for result in (divided, local)]
    assert accuracies[0] == accuracies[1]
    assert not list((tmp_path / "engine").rglob("tasks")), "no files of tasks are left"
