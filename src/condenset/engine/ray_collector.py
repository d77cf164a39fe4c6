"""The actor that collects the reports of tasks on Ray. Its process must not import PyTorch, which takes seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class AttemptReport:
    """What an attempt has sent.

    Attributes:
        node: The address of its node.
        fraction: The fraction of the task that is done.
        files: The files that it has changed since the driver took the last report.
    """

    node: str
    fraction: float = 0.0
    files: dict[str, bytes | None] = field(default_factory=dict)


class TaskCollector:
    """The actor that collects progress and files of the running tasks, on the machine of the driver.

    An attempt is one start of a task. If its worker is believed to be dead but runs, for example after a network
    failure, the attempt is asked to stop, because another one has taken its place.
    """

    def __init__(self) -> None:
        self.reports: dict[int, AttemptReport] = {}
        self.stopped: set[int] = set()
        self.ended: set[int] = set()

    def start(self, attempt: int, node: str) -> None:
        """Record the node that an attempt runs on, unless the driver has given the attempt up already."""
        if attempt not in self.ended:
            self.reports[attempt] = AttemptReport(node)

    def update(self, attempt: int, fraction: float, files: Mapping[str, bytes | None]) -> bool:
        """Store progress and changed files of an attempt, and return whether it must stop."""
        if attempt not in self.reports:
            return True
        report = self.reports[attempt]
        report.fraction = fraction
        report.files.update(files)
        return attempt in self.stopped

    def request_stop(self, attempts: Iterable[int]) -> None:
        """Ask attempts to stop at their next update."""
        self.stopped.update(attempts)

    def take(self) -> dict[int, AttemptReport]:
        """Return the reports of all attempts, with the files since the last call."""
        taken = {attempt: dataclasses.replace(report) for attempt, report in self.reports.items()}
        for report in self.reports.values():
            report.files = {}
        return taken

    def end(self, attempt: int) -> None:
        """Forget an attempt that has ended or failed."""
        self.reports.pop(attempt, None)
        self.ended.add(attempt)
