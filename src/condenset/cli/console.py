"""Print tables and warnings."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with borders on a terminal, else as aligned plain text."""
    if sys.stdout.isatty():
        table = Table()
        for name in columns:
            table.add_column(name, overflow="fold")  # never cut off a long word
        for row in rows:
            table.add_row(*map(Text, row))  # Text: brackets are not markup
        Console().print(table)
        return
    lines = [tuple(columns), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_entries(
    columns: tuple[str, ...], keys: tuple[str, ...], rows: Sequence[tuple[str, ...]], as_json: bool
) -> None:
    """Print rows as a table with these columns, or as a JSON list of objects with these keys."""
    if as_json:
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=1))
    else:
        print_table(columns, rows)


def print_records(records: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print the records of results.json as a table, or as JSON."""
    if as_json:
        print(json.dumps(records, indent=1))
    else:
        columns = ("method", "images per class", "accuracy %", "networks", "condense s", "evaluate s")
        print_table(columns, [_score_row(record) for record in records])


def _score_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    from condenset.training.scores import format_accuracy

    has_score = "accuracy_mean" in record
    accuracy = format_accuracy(record) if has_score else "-"
    networks = f"{len(record['accuracies'])} × {record['network']}" if has_score else str(record["network"] or "-")
    condense_seconds = _format_seconds(record.get("condense_seconds"))
    if "together" in record:  # sets of several sizes that took these seconds in total
        condense_seconds += f" for {', '.join(map(str, record['together']))}"
    ipc = record["ipc"] or ("all" if record["method"] == "whole" else "-")
    evaluate_seconds = _format_seconds(record.get("evaluate_seconds"))
    return str(record["method"] or "-"), str(ipc), accuracy, networks, condense_seconds, evaluate_seconds


def _format_seconds(seconds: float | None) -> str:
    return f"{seconds:.1f}" if seconds else "-"


def print_files(directory: Path, **files: str) -> None:
    """Print the paths of files in a directory, each after its label. Files that do not exist are left out."""
    for label, file in files.items():
        if (directory / file).exists():
            print(f"{label:9}{directory / file}")


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings to the user on one line without the position in the code."""
    with warnings.catch_warnings():
        default_show = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if category is not UserWarning:
                default_show(message, category, *args, **kwargs)
                return
            text = str(message).partition("\nException raised from")[0]  # the C++ stack trace of torch
            print(f"condenset: warning: {' '.join(text.split())}", file=sys.stderr, flush=True)

        warnings.showwarning = show
        yield
