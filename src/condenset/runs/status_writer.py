"""status.json: what the process of a run is doing now, for `condenset status`. It never stops a run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from condenset.errors import UserError
from condenset.io.files import write_file
from condenset.io.progress import ProgressBar
from condenset.runs.context import RunContext
from condenset.runs.status_report import STATUS

WRITE_SECONDS = 1.0  # between two writes
MAX_ERROR_CHARACTERS = 1000


class StatusProgress(ProgressBar):
    """A progress bar that also writes status.json to the directory of a run, at each start and once a second.

    Args:
        run: The run. Without a directory, nothing is written.
    """

    def __init__(self, run: RunContext) -> None:
        super().__init__()
        self.run, self.directory = run, run.directory  # an experiment changes the directory of the run
        self._last_write, self._task = 0.0, dict[str, Any]()
        self._process = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "device": f"{run.compute.hardware}, {run.compute.precision}",
            "started": time.time(),
        }

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        super().start(description, total, done, unit=unit)
        self._task = {"job": description, "position": self.job_label, "step": done, "total": total}
        self.write("running")  # the first step may take minutes

    def update(self, done: float, note: str = "") -> None:
        super().update(done, note)
        self._task |= {"step": done, "note": note, "remaining_seconds": self.remaining_seconds}
        if time.monotonic() - self._last_write >= WRITE_SECONDS:
            self.write("running")

    def write(self, state: str, error: str = "") -> None:
        """Replace status.json. A directory that cannot be written, or belongs to another run now, is left alone."""
        self._last_write = time.monotonic()
        if self.directory is None:
            return
        status = {"state": state, "error": error[:MAX_ERROR_CHARACTERS], "updated": time.time()}
        with contextlib.suppress(OSError, UserError):
            self.run.verify_identity()
            content = json.dumps({**status, **self._process, **self._task}, indent=1)
            write_file(self.directory / STATUS, content.encode() + b"\n", sync=False)


@contextlib.contextmanager
def record_status(run: RunContext) -> Iterator[None]:
    """Show the progress of a run, and record in status.json how the block ends."""
    run.progress = progress = StatusProgress(run)
    progress.write("running")
    try:
        yield
    except BaseException as error:
        was_stopped = isinstance(error, KeyboardInterrupt) or run.stop.requested
        progress.write("stopped" if was_stopped else "failed", "" if was_stopped else str(error))
        raise
    progress.write("finished")
