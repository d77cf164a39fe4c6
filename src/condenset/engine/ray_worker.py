"""What runs in the workers of Ray: tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from condenset import __version__
from condenset.engine.ray_connection import import_ray
from condenset.engine.tasks import Files, TaskSession
from condenset.errors import check

VERSIONS = {"condenset": __version__, "torch": str(torch.__version__)}  # that decide the result


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

    def send(fraction: float, changed: Files) -> bool:
        stop: bool = get_value(collector.update.remote(attempt, fraction, changed))
        return stop

    return TaskSession(files, send).run(function, arguments)


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise a UserError if a worker has other versions than the driver, whose results could differ."""
    for name, version in versions.items():
        check(VERSIONS[name] == version, f"all nodes must have {name} {version} as the driver", VERSIONS[name])
