"""What runs in the workers of Ray: tasks, and the actor that collects their reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from condenset import __version__
from condenset.engine.ray_connection import import_ray
from condenset.engine.tasks import Files, TaskSession
from condenset.errors import check

VERSIONS = {"condenset": __version__, "torch": str(torch.__version__)}  # that decide the result


@dataclass
class AttemptReport:
    """What an attempt has sent.

    Attributes:
        node: The address of its node.
        share: The share of the task that is done.
        files: The files that it has changed since the driver took the last report.
    """

    node: str
    share: float = 0.0
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

    def update(self, attempt: int, share: float, files: Files) -> bool:
        """Store progress and changed files of an attempt, and return whether it must stop."""
        if attempt not in self.reports:
            return True
        report = self.reports[attempt]
        report.share = share
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


def get_value(reference: Any) -> Any:
    """Return a value of the cluster. A thread waits for it.

    While the main thread of a task waits, Ray lends the CPU of the task to another one, and both then run at once.
    """
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(import_ray().get, reference).result()


def run_task(
    collector: Any,
    attempt: int,
    versions: Mapping[str, str],
    function: Callable[..., Any],
    files: Mapping[str, bytes],
    *arguments: Any,
) -> Any:
    """Run a task in a worker."""
    ray = import_ray()
    get_value(collector.start.remote(attempt, ray.util.get_node_ip_address()))
    check_versions(versions)

    def send(share: float, changed: Files) -> bool:
        stop: bool = get_value(collector.update.remote(attempt, share, changed))
        return stop

    return TaskSession(files, send).run(function, arguments)


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise a UserError if a worker has other versions than the driver, whose results could differ."""
    for name, version in versions.items():
        check(VERSIONS[name] == version, f"all nodes must have {name} {version} as the driver", VERSIONS[name])
