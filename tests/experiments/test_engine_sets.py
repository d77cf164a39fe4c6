"""On an engine, the sets of an experiment are condensed at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import CondensedSet
from condenset.data.image_data import Splits
from condenset.engine.tasks import LocalEngine, Task, TaskMonitor
from helpers.experiment_runs import make_run, run_tiny, skip_scoring

pytestmark = pytest.mark.usefixtures("fast_tiny")


class RecordingEngine(LocalEngine):
    """Record the names of the tasks that run at the same time."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        self.names.append([task.name for task in tasks])
        return super().run(tasks, monitor)


@pytest.mark.parametrize(
    ("name", "settings", "parts"),
    [
        ("batchnorm", {"methods": ("random",), "num_sets": 2}, {"random-instance", "random-batch-set2"}),
        ("architectures", {"methods": ("random", "dm")}, {"random-ConvNet", "dm-ConvNet", "dm-MLP"}),
        ("nas", {"methods": ("random", "dm")}, {"random", "dm"}),
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
