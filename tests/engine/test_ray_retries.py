"""Failed attempts of tasks on Ray, without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from condenset import UserError
from condenset.engine.ray_tasks import _Attempt, _Schedule
from condenset.engine.tasks import MissingFileError, Task
from helpers.cluster_tasks import DirectoryMonitor, add

ray = pytest.importorskip("ray")


def make_schedule(directory: Path) -> tuple[_Schedule, DirectoryMonitor, Any]:
    """Return the schedule of one task, its monitor and the engine."""
    engine: Any = SimpleNamespace(ray=ray, collector=None, shares_files=True)
    monitor = DirectoryMonitor(directory)
    return _Schedule(engine, [Task(key="a", name="a", function=add)], monitor), monitor, engine


def make_task_error(cause: Exception) -> Exception:
    """Return the error that Ray raises if a task raises `cause`."""
    error: Exception = ray.exceptions.RayTaskError("run_task", "", cause, "", 1, "10.0.0.1").as_instanceof_cause()
    return error


@pytest.mark.parametrize(
    ("error", "shares_files"),
    [
        (ray.exceptions.WorkerCrashedError(), True),
        (make_task_error(UserError("out of memory")), True),
        (make_task_error(MissingFileError("a.npy does not exist on this machine")), False),
    ],
)
def test_only_a_missing_file_stops_the_use_of_shared_files(
    error: Exception, shares_files: bool, tmp_path: Path
) -> None:
    schedule, _, engine = make_schedule(tmp_path)
    schedule._retry(_Attempt(1, 0), error)
    assert engine.shares_files == shares_files


def test_every_failed_attempt_is_recorded(tmp_path: Path) -> None:
    schedule, monitor, _ = make_schedule(tmp_path)
    error = make_task_error(UserError("out of memory"))
    for number in (1, 2):
        schedule._retry(_Attempt(number, 0), error)
    with pytest.raises(UserError, match="a failed 3 times, the last time on node unknown: out of memory"):
        schedule._retry(_Attempt(3, 0), error)
    assert monitor.failures == ["out of memory"] * 3
