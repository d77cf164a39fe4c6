"""A progress bar on a terminal, silence everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_shown = False  # one bar at a time: a reader's bar inside a caller's bar stays silent


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
