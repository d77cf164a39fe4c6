"""The progress of the tasks of a run, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from condenset.engine import ComputeDevice
from condenset.engine.tasks import Task, TaskMonitor
from condenset.io import progress
from condenset.io.progress import ProgressBar
from condenset.runs.context import RunContext
from condenset.runs.tasks import run_tasks
from helpers.local_engine import LocalEngine


@pytest.mark.parametrize(("resumed", "remaining"), [((0, 1), [None, None, 72.0]), ((), [None, 12.25, 12.51])])
def test_shares_loaded_from_checkpoints_are_no_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resumed: Sequence[int], remaining: list[float | None]
) -> None:
    """The first report of 80% contains the checkpoints of resumed tasks, which then advance by 2% in 8 s."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)

    class PolledEngine(LocalEngine):
        def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
            nonlocal now
            polls: list[dict[int, float]] = [{}, *(dict.fromkeys((0, 1), fraction) for fraction in (0.0, 0.8, 0.82))]
            for seconds, fractions in zip((0, 1, 48, 8), polls, strict=True):
                now += seconds
                monitor.update(fractions)
                shown.append(bar.remaining_seconds)
            yield from ((index, None) for index in range(len(tasks)))

    bar, shown = ProgressBar(), list[float | None]()
    run = RunContext(compute=ComputeDevice.select("cpu"), directory=tmp_path, progress=bar, engine=PolledEngine())
    for index in resumed:
        (tmp_path / "tasks" / f"shard-{index}").mkdir(parents=True)
    tasks = [Task(key=f"shard-{index}", name=f"shard {index}", function=print) for index in range(2)]
    assert len(list(run_tasks(run, tasks, "dm", 100))) == 2
    assert shown[1:] == [value if value is None else pytest.approx(value, rel=1e-3) for value in remaining]
