"""An engine that records its tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from condenset.engine.tasks import Task, TaskMonitor
from helpers.local_engine import LocalEngine


class RecordingEngine(LocalEngine):
    """Record the names of the tasks that run at the same time."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        self.names.append([task.name for task in tasks])
        return super().run(tasks, monitor)

    def scored_jobs(self) -> list[set[str]]:
        """Return the jobs whose networks were trained at the same time, for each call."""
        calls = [{name.partition(": networks ")[0] for name in names if ": networks " in name} for names in self.names]
        return [call for call in calls if call]
