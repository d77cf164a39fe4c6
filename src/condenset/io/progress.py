"""Progress display: a bar on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from condenset.errors import escape_controls
from condenset.io.bytesize import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LONG_SECONDS = 600.0  # more remaining time than this gets a warning
MIN_WORK_SECONDS = 5.0  # a shorter measurement is not reliable enough for a warning
SLOW_STEP_SECONDS = 2.0  # from this on, progress within a step is shown
LINE_SECONDS = 30.0  # between two lines when there is no terminal
MIN_LINE_SECONDS = 2.0  # shorter tasks print no line


# Steps of the task, seconds per step and seconds remaining -> seconds that the run still needs, and text with them
RunEstimate = Callable[[int | None, float, float], tuple[float, str]]

_is_shown: ContextVar[bool] = ContextVar("show progress and notices", default=True)


class NullProgress:
    """A progress display that shows nothing. It defines the interface of all displays."""

    job_label: str = ""  # shown before the description: the position of the job in the run, such as 3/21
    estimate_run: RunEstimate | None = None  # for the warning about a long run; None: it covers the current task

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        """Begin a task of `total` steps (None if unknown), of which `done` are complete. Units are "B", "%" or none."""

    def update(self, done: float, note: str = "") -> None:
        """Show that `done` steps are complete."""

    def restart_rate(self) -> None:
        """Measure the rate from the next update on, which contains steps that a checkpoint had."""

    def send_files(self) -> None:
        """Send the files that a task on an engine has written. Displays do nothing."""

    def stop(self) -> None:
        """End the task and remove the bar."""


class ProgressBar(NullProgress):
    """Show a bar with percentage, rate, note and time remaining; without a terminal print a line every 30 seconds.

    Only one task is shown at a time: a task that starts during another one, such as reading data, stays silent.
    The display warns once if a task, or the run as `estimate_run` estimates it, needs more than ten minutes.
    """

    _active: ProgressBar | None = None  # shared by all instances

    def __init__(self) -> None:
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.last_line = self.start_time = time.monotonic()
        self.has_warned = False  # about more than ten minutes remaining
        self.remaining_seconds: float | None = None
        self.baseline: tuple[float, float] | None = None  # steps and time that the rate is measured from
        self.total: int | None = None

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        self.stop()
        self.description = escape_controls(f"{self.job_label} {description}".strip())  # it can contain a file name
        self.total, self.unit, self.start_time = total, unit, time.monotonic()
        self.baseline = self.remaining_seconds = None
        if ProgressBar._active is None:
            ProgressBar._active = self
            if self.is_terminal:
                self._start_bar(done)

    def _start_bar(self, done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

        fields = [TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("rate", "note", "remaining")]
        self.bar = Progress(
            SpinnerColumn("line"),  # moves also while a step takes long
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            *fields,
            console=Console(stderr=True, markup=False, highlight=False),
            transient=True,
        )
        self.task = self.bar.add_task(
            self.description, total=self.total, completed=done, rate="", note="", remaining=""
        )
        self.bar.start()

    def update(self, done: float, note: str = "") -> None:
        now = time.monotonic()
        # The first step also prepares kernels, so the rate is measured from its end.
        first_done, first_time = self.baseline = self.baseline or (done, now)
        seconds = now - first_time
        rate = (done - first_done) / seconds if seconds else 0.0
        remaining = (self.total - done) / rate if rate and self.total is not None else 0.0
        self.remaining_seconds = remaining if rate else None
        if ProgressBar._active is not self:
            return
        remaining_text = f"about {format_duration(remaining)} remaining" if remaining > 0 else ""
        rate_text = self._format_rate(rate) if rate > 0 and self.unit != "%" else ""
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, note=note, rate=rate_text, remaining=remaining_text)
        is_measured = rate > 0 and seconds > MIN_WORK_SECONDS
        if is_measured and not self.has_warned and (warning := self._describe_long_run(remaining, rate)):
            self.has_warned, self.last_line = True, now
            self._print(f"{self.description}: {warning}")
        elif self.bar is None and now - self.last_line >= LINE_SECONDS and now - self.start_time >= MIN_LINE_SECONDS:
            self.last_line = now
            shown = done if rate * SLOW_STEP_SECONDS < 1 else int(done)
            total = "" if self.total is None else f" of {self._format_done(self.total)}"
            parts = [text for text in (self._format_done(shown) + total, note, remaining_text) if text]
            self._print(f"{self.description}: {', '.join(parts)}")

    def restart_rate(self) -> None:
        self.baseline = None

    def _describe_long_run(self, remaining: float, rate: float) -> str:
        """Return the warning about more than ten minutes remaining, or nothing if there are fewer."""
        text = f"about {format_duration(remaining)} remaining at {self._format_rate(rate)}"
        if self.estimate_run is not None:
            remaining, text = self.estimate_run(self.total, 1 / rate, remaining)
        return text if remaining > LONG_SECONDS else ""

    def _format_rate(self, rate: float) -> str:
        return f"{format_bytes(round(rate))}/s" if self.unit == "B" else f"{rate:.3g}{self.unit}/s"

    def _format_done(self, done: float) -> str:
        if self.unit == "B":
            return format_bytes(round(done))
        return f"{done:.1f}{self.unit}" if isinstance(done, float) else f"{done}{self.unit}"

    def _print(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, soft_wrap=True)
        elif sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        if ProgressBar._active is self:
            ProgressBar._active = None
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def make_progress(verbose: bool) -> NullProgress:
    """Return a progress bar, or an object that shows nothing if `verbose` is False."""
    return ProgressBar() if verbose else NullProgress()


@contextmanager
def limit_progress(verbose: bool) -> Iterator[None]:
    """Show no progress and no notices in the block if `verbose` is False."""
    token = _is_shown.set(verbose and _is_shown.get())
    try:
        yield
    finally:
        _is_shown.reset(token)


@contextmanager
def show_progress(
    description: str, total: int | None = None, done: int = 0, *, unit: str = ""
) -> Iterator[Callable[[int], None]]:
    """Show the progress of a block, such as reading a file, unless `limit_progress` forbids it.

    Args:
        description: What the block does.
        total: The number of steps, if known.
        done: The number of steps that are complete.
        unit: "B" for bytes.

    Yields:
        `advance(n)`, which counts n further steps.
    """
    progress = make_progress(_is_shown.get())

    def advance(num: int) -> None:
        nonlocal done
        done += num
        progress.update(done)

    progress.start(description, total, done, unit=unit)
    try:
        yield advance
    finally:
        progress.stop()


def print_notice(line: str) -> None:
    """Print one line to stderr, unless `limit_progress` forbids it."""
    if _is_shown.get() and sys.stderr is not None:
        print(escape_controls(line), file=sys.stderr, flush=True)


def format_duration(seconds: float) -> str:
    """Return a duration as text, rounded: `95 s` (at least `1 s`), `12 min`, `3.5 h` or `4 days`."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"
