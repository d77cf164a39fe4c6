"""Run commands in child processes that are killed at file operations or meet a full disk."""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from condenset.cli import main
from condenset.runs import checkpoint, loop

TIMEOUT_SECONDS = 60
PRELOADED_MODULES = (  # before the fork, so that every child process starts at once
    "torch._dynamo",
    "matplotlib.backends.backend_agg",
    "condenset.data",
    "condenset.experiments.start",
    "condenset.pipeline.evaluation.run",
    "condenset.pipeline.run",
    "condenset.report.charts",
    "condenset.report.grid",
)
FILE_OPERATIONS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink"}


for module in PRELOADED_MODULES:
    importlib.import_module(module)


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command (negative: the signal that ended it) and what it printed."""

    code: int
    out: str
    err: str

    @property
    def is_refusal(self) -> bool:
        """Whether the command failed with one line."""
        lines = [line for line in self.err.splitlines() if line.startswith("condenset: ")]
        return self.code == 2 and len([line for line in lines if "warning: " not in line]) == 1

    @property
    def has_warning(self) -> bool:
        return "condenset: warning: " in self.err


def run_command(
    arguments: list[str],
    directory: Path,
    *,
    setup: Callable[[], None] = lambda: None,
    kill_after: float | None = None,
) -> Outcome:
    """Run a command in a child process.

    Args:
        arguments: The words after `condenset`.
        directory: The working directory, which also gets the output.
        setup: Called in the child process before the command.
        kill_after: Kill the process after so many seconds.
    """
    process = os.fork()
    if process == 0:
        _run_child(arguments, directory, setup)
    limit = TIMEOUT_SECONDS if kill_after is None else kill_after
    deadline = time.monotonic() + limit
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)
            break
        time.sleep(0.002)
    out, err = ((directory / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    code = os.waitstatus_to_exitcode(ended[1])
    if code == -signal.SIGKILL and kill_after is None and time.monotonic() > deadline:
        err += "\nTIMEOUT"
    return Outcome(code, out, err)


def _run_child(arguments: list[str], directory: Path, setup: Callable[[], None]) -> None:
    """Run a command and exit. A bug prints its traceback and exits with 1."""
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(directory)
        torch.set_num_threads(1)
        checkpoint.CHECKPOINT_SECONDS = loop.SYNC_SECONDS = 0.0  # as many file operations as possible
        setup()
        main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


@dataclass(frozen=True)
class KillAtOperation:
    """Kill the process before its nth operation that changes a file below a directory.

    The file `operations` next to the directory gets a byte per operation.
    """

    number: int
    directory: Path

    def __call__(self) -> None:
        num_operations = 0
        log = os.open(self.directory.parent / "operations", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal num_operations
            is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if not (is_write or event in FILE_OPERATIONS) or isinstance(arguments[0], int):
                return
            path = os.path.abspath(os.fsdecode(arguments[0]))
            if path.startswith(str(self.directory)):
                num_operations += 1
                os.write(log, b".")
                if num_operations == self.number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)


@dataclass(frozen=True)
class LimitFileSize:
    """Make every write beyond a size fail, as on a full disk; for users who cannot mount a file system."""

    num_bytes: int

    def __call__(self) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.num_bytes, self.num_bytes))
