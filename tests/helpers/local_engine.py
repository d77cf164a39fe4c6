"""An engine without a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from condenset.engine.tasks import Engine, Files, Task, TaskMonitor, TaskSession, TaskStopped


class LocalEngine(Engine):
    """Run tasks one after the other in this process: the reference that clusters are compared with."""

    name = "local"

    def num_workers(self) -> int:
        return 1

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        for index, task in enumerate(tasks):
            result = self._run_task(index, task, monitor)
            if isinstance(result, TaskStopped):
                return
            yield index, result

    def _run_task(self, index: int, task: Task, monitor: TaskMonitor) -> Any:
        def send(fraction: float, files: Files) -> bool:
            monitor.write_files(index, files)
            monitor.update({index: fraction})
            return monitor.stop_requested()

        monitor.record_start(index, "this machine")
        return TaskSession(monitor.read_files(index), send).run(task.function, task.make_arguments())
