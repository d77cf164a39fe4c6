"""Run independent tasks, in this process or on a cluster.

Each task has a temporary directory. The files that it writes there, such as checkpoints, are copied to the
process that started it. A task that starts again, because its worker died or the whole run was killed, receives them.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.errors import UserError
from condenset.io.directories import temporary_directory, wrap_os_errors
from condenset.io.files import write_file

REPORT_SECONDS = 0.5  # between two reports of a task
LOG_SUFFIX = ".jsonl"  # logs grow with every step: they are copied only together with other files
PREVIOUS_SUFFIX = ".previous"  # of the checkpoint before the last one: the driver keeps its own

Files = Mapping[str, bytes | None]  # content by relative path; None: the file was deleted


@dataclass(frozen=True, kw_only=True)
class Task:
    """A piece of work that depends on no other.

    Attributes:
        key: The file name of the task, unique within its run. It is the same if the run is resumed.
        name: The name in messages, such as "classes 3 to 5 of dm-10".
        function: A function that a worker can import: `function(session, *arguments) -> result`.
        make_arguments: Return the arguments. It is called when the task is handed out, so that the arguments of waiting
            tasks need no memory.
        weight: The share of the work of all tasks, in any unit.
    """

    key: str
    name: str
    function: Callable[..., Any]
    make_arguments: Callable[[], tuple[Any, ...]] = tuple
    weight: float = 1.0


class MissingFileError(UserError):
    """A worker cannot read a file of the driver at its path, or has another file there."""


class TaskStopped:
    """The result of a task that was asked to stop. Its files are saved."""


class TaskMonitor:
    """What the process that starts tasks does while they run. This one does nothing."""

    def stop_requested(self) -> bool:
        """Return whether all tasks must stop."""
        return False

    def read_files(self, index: int) -> dict[str, bytes]:
        """Return the files that a task starts with: those of an earlier attempt."""
        return {}

    def write_files(self, index: int, files: Files) -> None:
        """Store the files that a task has changed."""

    def update(self, fractions: Mapping[int, float]) -> None:
        """Show the progress of tasks, as fractions from 0 to 1 by index."""

    def record_start(self, index: int, node: str) -> None:
        """Record that a worker started the task."""

    def record_failure(self, index: int, node: str, reason: str) -> None:
        """Record that an attempt of the task failed."""


class TaskSession:
    """The connection of a running task to the process that started it.

    Args:
        files: The files of an earlier attempt.
        send: Report the fraction that is done and the changed files; return whether to stop.

    Attributes:
        directory: The temporary directory of the task.
    """

    def __init__(self, files: Mapping[str, bytes], send: Callable[[float, Files], bool]) -> None:
        self._send, self._fraction, self._last_report = send, 0.0, 0.0
        self._stack = contextlib.ExitStack()
        self.directory = self._stack.enter_context(temporary_directory("condenset-task"))
        write_files(self.directory, files)
        self._sent = self._stat_files()

    def report(self, fraction: float, *, force: bool = False) -> bool:
        """Report progress, at most twice a second, and return whether to stop.

        Args:
            fraction: The fraction of the task that is done.
            force: Report now, and send all changed files.
        """
        self._fraction = fraction
        if not force and time.monotonic() - self._last_report < REPORT_SECONDS:
            return False
        present = self._stat_files()
        new = {name for name in present if not name.endswith(PREVIOUS_SUFFIX)}
        changed = {name for name in new if self._sent.get(name) != present[name]} | (self._sent.keys() - present.keys())
        files: dict[str, bytes | None] = {}
        if force or any(not name.endswith(LOG_SUFFIX) for name in changed):
            for name in sorted(changed):
                files[name] = (self.directory / name).read_bytes() if name in present else None
            self._sent = present
        stop = self._send(fraction, files)
        self._last_report = time.monotonic()
        return stop

    def _stat_files(self) -> dict[str, tuple[int, int, int]]:
        """Return what identifies the content of each file. Names of temporary files begin with a dot."""
        files = {}
        for path in self.directory.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                stat = path.stat()
                files[str(path.relative_to(self.directory))] = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        return files

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Run a task, send its last files and return its result; remove the directory."""
        with self._stack:
            try:
                result = function(self, *arguments)
            except KeyboardInterrupt:  # it was asked to stop, and has saved its state
                result = TaskStopped()
            else:
                self._fraction = 1.0
            self.report(self._fraction, force=True)
            return result


class SharedValue:
    """A handle to a value that several tasks use."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        """Return the value."""
        return self._value


class Engine(ABC):
    """Runs tasks.

    Attributes:
        shares_files: Whether workers can read the files of the driver, as far as is known.
    """

    name: str
    shares_files: bool = True

    @abstractmethod
    def num_workers(self) -> int:
        """Return how many tasks can run at once."""

    def share(self, value: Any) -> SharedValue:
        """Return a handle to a value that several tasks have as an argument. It reaches each machine once."""
        return SharedValue(value)

    @abstractmethod
    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        """Yield the index and the result of each task in order of completion; a stop request ends it early.

        Raises:
            UserError: If a task fails several times.
        """


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, except temporary ones, by relative path."""
    paths = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def write_files(directory: Path, files: Files) -> None:
    """Write files below a directory, then delete those whose content is None.

    After a kill or on a full disk, a deleted checkpoint without the result that replaces it would lose the task.
    """
    with wrap_os_errors(directory):
        for name, content in files.items():
            if content is not None:
                write_file(directory / name, content)
        for name in (name for name, content in files.items() if content is None):
            (directory / name).unlink(missing_ok=True)
