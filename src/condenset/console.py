"""What a person sees: tables, warnings in a line, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from condenset.progress import Shown, span

__all__ = ["Shown", "interruptible", "plain_warnings", "print_scores", "print_table", "span"]

if TYPE_CHECKING:
    from condenset.runs import Run


@contextmanager
def interruptible(run: Run) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) inside a loop asks it to stop at a step's end; a second one stops at once."""

    def handler(number: int, frame: FrameType | None) -> None:
        asked, run.stop_requested = run.stop_requested, number
        if asked or not run.listening:
            raise KeyboardInterrupt
        print("\nstopping after this step …", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """A warning meant for the user is one line without the place in the code; others stay as they are."""
    with warnings.catch_warnings():
        other = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if category is UserWarning:
                text = str(message).partition("\nException raised from")[0]  # where torch tells of its own innards
                print(f"condenset: warning: {' '.join(text.split())}", file=sys.stderr, flush=True)
            else:
                other(message, category, *place, **more)

        warnings.showwarning = show
        yield


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, turned where it fits it only so; elsewhere columns of plain text."""
    lines = [tuple(columns), *map(tuple, rows)]
    if sys.stdout.isatty():
        console, turned = Console(), list(zip(*lines, strict=True))
        if _drawn_width(turned) <= console.width < _drawn_width(lines):
            lines = turned
        table = Table()
        for name in lines[0]:
            table.add_column(name, overflow="fold")  # a long word goes on in the next line: nothing is cut off
        for row in lines[1:]:
            table.add_row(*map(Text, row))  # as it is: brackets are no markup
        console.print(table)
        return
    widths = _widths(lines)
    for row in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*lines, strict=True)]


def _drawn_width(lines: Sequence[Sequence[str]]) -> int:
    """Of a table on a terminal whose every cell has one line: a rule and two spaces beside each column."""
    return 1 + sum(width + 3 for width in _widths(lines))


def print_scores(records: Sequence[Mapping[str, Any]]) -> None:
    """Accuracy and cost of every method and number of images a class."""
    from condenset.types import percent

    rows = []
    for record in records:
        scored = "accuracy_mean" in record
        accuracy = percent(record) if scored else "-"
        nets = f"{len(record['accuracies'])} × {record['network']}" if scored else str(record["network"] or "-")
        spent = [record.get(key) for key in ("condense_seconds", "evaluate_seconds")]
        seconds = [f"{value:.1f}" if value else "-" for value in spent]
        if "together" in record:  # sizes that took those seconds at once
            seconds[0] += f" for {', '.join(map(str, record['together']))}"
        number = record["ipc"] or ("all" if record["method"] == "whole" else "-")
        rows.append((str(record["method"] or "-"), str(number), accuracy, nets, *seconds))
    print_table(("method", "images a class", "accuracy %", "networks", "condense s", "evaluate s"), rows)
