"""Progress: a bar on a terminal; elsewhere silence, or a line for what takes long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LONG = 600.0  # seconds, from which on an estimate is told
LINE_SECONDS = 30.0  # between two lines where there is no terminal for a bar
_shown = False  # one bar at a time: a reader's bar inside a caller's bar stays silent


class Silent:
    """Progress that nobody watches."""

    part: str = ""  # which of a run's jobs is under way, such as 3/21

    def foretell(self, seconds: Callable[[], float]) -> None: ...

    def start(self, text: str, total: int, done: int = 0) -> None: ...

    def update(self, done: float, note: str = "") -> None: ...

    def stop(self) -> None: ...


class Shown(Silent):
    """A bar on a terminal with rate, loss and time left; elsewhere a line now and then for what takes long."""

    def __init__(self) -> None:
        self.terminal = sys.stderr is not None and sys.stderr.isatty()
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self.spoken = time.monotonic()  # when the last line was, of whatever it told

    def foretell(self, seconds: Callable[[], float]) -> None:
        """Before anything begins, say how long all of it takes, if that is long."""
        if (left := seconds()) > LONG:
            self._say(f"about {span(left)} for all of it, going by a training step on this machine")

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.text, self.total, self.told = f"{self.part} {text}".strip(), total, False
        self.first: tuple[float, float] | None = None  # steps and time when the first were done
        if self.terminal:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[rate]}"),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, markup=False, highlight=False),
                transient=True,
            )
            self.task = self.bar.add_task(self.text, total=total, completed=done, note="", rate="")
            self.bar.start()

    def update(self, done: float, note: str = "") -> None:
        now = time.monotonic()
        steps, began = self.first = self.first or (done, now)  # making kernels ready is no part of the rate
        seconds = now - began
        rate = (done - steps) / seconds if seconds else 0.0
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=done, note=note, rate=f"{rate:.3g}/s" if rate else "")
        left = (self.total - done) / rate if rate else 0.0
        if not self.told and seconds > 5 and left > LONG:
            self.told, self.spoken = True, now
            self._say(f"{self.text}: about {span(left)} to go at this rate ({rate:.3g} steps a second)")
        elif self.bar is None and now - self.spoken >= LINE_SECONDS:
            self.spoken = now
            rest = [note] if note else []
            rest += [f"about {span(left)} to go"] if left else []
            far = f"{done:.1f}" if isinstance(done, float) else f"{done}"
            self._say(f"{self.text}: {', '.join([f'{far} of {self.total}', *rest])}")

    def _say(self, line: str) -> None:
        if self.bar is not None:
            self.bar.console.print(line, soft_wrap=True)
        elif sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def span(seconds: float) -> str:
    """`95 s`, `12 min`, `3.5 h`, `4 days`."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} days"


@contextmanager
def progress_bar(description: str, total: int | None = None, unit: str = "") -> Iterator[Callable[[int], None]]:
    """Give `advance(n)`, which moves a bar on standard error if that is a terminal; unit "B" counts bytes."""
    global _shown
    if _shown or sys.stderr is None or not sys.stderr.isatty():
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = DownloadColumn() if unit == "B" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), count, TextColumn("{task.fields[unit]}")]
    console = Console(file=sys.stderr)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(description, total=total, unit="" if unit == "B" else unit)
        _shown = True
        try:
            yield lambda n: progress.advance(task, n)
        finally:
            _shown = False
