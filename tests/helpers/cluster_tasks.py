"""Functions that tests run as tasks on workers, and monitors that disturb them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray

from condenset.engine.tasks import Files, SharedValue, TaskMonitor, TaskSession, write_files
from condenset.engine.tasks import read_files as read_directory

NUM_STEPS = 10
STEP_SECONDS = 0.15


def add(session: TaskSession, first: int, second: int) -> int:
    """Return the sum of two numbers."""
    return first + second


def fail_at_first(session: TaskSession, log: Path, num_failures: int) -> int:
    """Raise an error in the first attempts, and return the number of attempts."""
    with log.open("a") as file:
        file.write("attempt\n")
    num_attempts = len(log.read_text().splitlines())
    if num_attempts <= num_failures:
        raise RuntimeError("the sky fell")
    return num_attempts


def count_slowly(session: TaskSession, log: Path) -> int:
    """Count to NUM_STEPS in a file of the task, and append the process and every number to a log."""
    counter = session.directory / "counter"
    done = int(counter.read_text()) if counter.exists() else 0
    for step in range(done + 1, NUM_STEPS + 1):
        time.sleep(STEP_SECONDS)
        write_files(session.directory, {"counter": str(step).encode()})
        with log.open("a") as file:
            file.write(f"{os.getpid()} {step}\n")
        if session.report(step / NUM_STEPS):
            raise KeyboardInterrupt
    return NUM_STEPS


def wait_for(session: TaskSession, value: SharedValue) -> tuple[str, float, float]:
    """Wait for a value; return the node, and when the task began and ended."""
    began = time.time()
    value.get()
    time.sleep(0.2)
    return ray.get_runtime_context().get_node_id(), began, time.time()


def sum_array(session: TaskSession, values: SharedValue) -> int:
    """Return the sum of an array in the object store."""
    array: np.ndarray[Any, Any] = values.get()
    return int(array.sum(dtype=np.int64))


class DirectoryMonitor(TaskMonitor):
    """Store the files of tasks in a directory, record what happens, and call a function once at some progress.

    Args:
        directory: The directory.
        at_fraction: The fraction of a task at which the function is called.
        action: The function.
    """

    def __init__(self, directory: Path, at_fraction: float = 2.0, action: Callable[[], None] = lambda: None) -> None:
        self.directory, self.at_fraction, self.action = directory, at_fraction, action
        self.failures: list[str] = []
        self.nodes: list[str] = []
        self.is_stopped = False

    def stop_requested(self) -> bool:
        return self.is_stopped

    def read_files(self, index: int) -> dict[str, bytes]:
        return read_directory(self.directory / str(index))

    def write_files(self, index: int, files: Files) -> None:
        write_files(self.directory / str(index), files)

    def update(self, fractions: Mapping[int, float]) -> None:
        if max(fractions.values(), default=0.0) >= self.at_fraction:
            self.at_fraction = 2.0
            self.action()

    def record_start(self, index: int, node: str) -> None:
        self.nodes.append(node)

    def record_failure(self, index: int, node: str, reason: str) -> None:
        self.failures.append(reason)


def kill_last_process(log: Path) -> None:
    """Kill the process that wrote the last line of a log."""
    os.kill(int(log.read_text().splitlines()[-1].split()[0]), signal.SIGKILL)


def logged_steps(log: Path) -> list[int]:
    """Return the numbers in a log."""
    return [int(line.split()[1]) for line in log.read_text().splitlines()]
