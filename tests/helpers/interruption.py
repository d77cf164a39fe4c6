"""Progress displays that ask a run to stop."""

from __future__ import annotations

from condenset.io.progress import NullProgress
from condenset.runs.context import RunContext


class StopAtStep(NullProgress):
    """Ask the run to stop once `step` steps are done."""

    def __init__(self, run: RunContext, step: int) -> None:
        self.run, self.step = run, step

    def update(self, done: float, note: str = "") -> None:
        self.run.stop.requested = int(done >= self.step)


class RecordProgress(NullProgress):
    """Record the progress of a loop."""

    def __init__(self) -> None:
        self.updates: list[float] = []

    def update(self, done: float, note: str = "") -> None:
        self.updates.append(done)


class StopAtLoop(NullProgress):
    """Ask the run to stop in the loop of this number, counted from 1."""

    def __init__(self, run: RunContext, number: int) -> None:
        self.run, self.remaining = run, number

    def start(self, description: str, total: int, done: int = 0) -> None:
        self.remaining -= 1

    def update(self, done: float, note: str = "") -> None:
        self.run.stop.requested = int(self.remaining <= 0)
