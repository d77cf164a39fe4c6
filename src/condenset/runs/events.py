"""Append to and read events.jsonl, the log of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from condenset.errors import is_number
from condenset.io.directories import wrap_os_errors
from condenset.io.files import open_file, open_for_append

EVENTS = "events.jsonl"
MAX_BYTES = 1 << 30
MAX_LINE_BYTES = 1 << 24  # the predictions of a network, counted by class, are the longest event


def append_event(path: Path, event: Mapping[str, Any]) -> None:
    """Append one event as a line of JSON."""
    line = json.dumps(dict(event)).encode() + b"\n"
    with wrap_os_errors(path), open_for_append(path) as file:
        if file.tell() and file.seek(-1, 2) and file.read() != b"\n":
            file.write(b"\n")  # a killed process left the last line incomplete
        file.write(line)


def iter_events(path: Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a file. Skip lines that are not JSON objects, such as one that a kill left incomplete.

    Args:
        path: The file.
        kind: Yield the events of this kind alone. Other lines, which can be long, are not parsed.
    """
    text = json.dumps(kind).encode() if kind else b""
    if not path.exists():
        return
    with open_file(path, MAX_BYTES) as file:
        while line := file.readline(MAX_LINE_BYTES):
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line) if text in line else None
                if isinstance(event, dict) and kind in (None, event.get("event")):
                    yield event


def is_network_event(event: Mapping[str, Any]) -> bool:
    """Return whether an event has a valid network number and duration."""
    net = event.get("net")
    return type(net) is int and net >= 0 and is_number(event.get("seconds"))


def is_fraction(value: object) -> bool:
    """Return whether a value is a number from 0 to 1, as accuracies are."""
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]
