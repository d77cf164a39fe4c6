"""Runs on the cluster of the tests, and the signals that disturb them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from condenset import CondensedSet
from condenset.engine import ComputeDevice, ray_tasks
from condenset.runs.context import RunContext
from condenset.runs.events import EVENTS, iter_events
from condenset.runs.status_report import read_status
from helpers.command_line import CommandProcess

NETWORK = ("--network", "convnet(width=8, depth=1)", "--device", "cpu")
LONG = ("--method", "dm", "--ipc", 2, "--iterations", 80, *NETWORK)  # a shard takes more than a report to the driver


def make_run(**fields: Any) -> RunContext:
    """Return a run that computes one class at a time, as the shards of four classes on two workers do."""
    return RunContext(compute=ComputeDevice.select("cpu"), classes_per_chunk=1, **fields)


def poll_often(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Let the driver collect reports at once, so that the disturbances do not come too late for short tasks."""
    replace(ray_tasks, "POLL_SECONDS", 0.1)


def start(dataset: Path, address: str, tmp_path: Path, settings: Sequence[object] = LONG) -> CommandProcess:
    """Start a run on the cluster in a process of its own."""
    options = ("--engine", "ray", "--address", address, "--out", tmp_path / "run")
    return CommandProcess(("condense", dataset, *settings, *options), tmp_path / "output", poll_often)


def load_images(directory: Path) -> Any:
    """Return the images of the run LONG."""
    return CondensedSet.load(directory / "sets" / "dm-2.safetensors").images


def read_events(directory: Path, state: str, name: str = "") -> list[dict[str, Any]]:
    """Return the events of tasks with this state whose name contains `name`."""
    events = (event for event in iter_events(directory / EVENTS) if event["event"] == "task")
    return [event for event in events if event["state"] == state and name in event["name"]]


def read_nodes(directory: Path) -> set[str]:
    """Return the nodes that tasks were started on."""
    return {event["node"] for event in read_events(directory, "started")}


def read_starts(directory: Path, began: float) -> list[dict[str, Any]]:
    """Return the starts of tasks since a time."""
    return [event for event in read_events(directory, "started") if event["time"] >= began]


def list_finished(directory: Path) -> list[Path]:
    """Return the sets of the finished shards."""
    return list((directory / "tasks").glob("*/set-0.safetensors"))


def has_checkpoint(directory: Path) -> bool:
    """Tell whether an unfinished shard has a checkpoint."""
    return any((directory / "tasks").glob("*/checkpoint"))


def check_progress(directory: Path) -> None:
    """Check that a finished run has counted every task once."""
    report = read_status(directory)
    assert (report.state, report.step, report.note) == ("finished", report.total, "4 of 4 tasks")
    assert report.tasks == {"finished": 4, "nodes": []}


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, at most a minute."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def find_workers(name: str) -> list[int]:
    """Return the processes that run tasks whose names begin with `name`."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"ray::{name}".encode()):
                processes.append(int(path.parent.name))
    return processes


def send_signal(processes: Sequence[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def kill_worker(name: str) -> bool:
    """Kill a process that runs a task whose name begins with `name`; return whether there was one."""
    processes = find_workers(name)[:1]
    send_signal(processes, signal.SIGKILL)
    return bool(processes)


@contextlib.contextmanager
def pause_workers(name: str) -> Iterator[None]:
    """Stop the processes that run tasks whose names begin with `name` for the duration of the block."""
    processes = find_workers(name)
    send_signal(processes, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(processes, signal.SIGCONT)
