"""Describe what a run is doing, from its files alone. Reading them never disturbs the run."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.errors import UserError, is_int, is_number
from condenset.io.files import read_file
from condenset.io.locks import is_locked
from condenset.io.metadata import MAX_BYTES, check_run_exists
from condenset.runs.events import EVENTS, is_fraction, iter_events

STATUS = "status.json"
FRESH_SECONDS = 30.0  # a younger status of another host counts as running, if the lock is not visible here
MAX_STATUS_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """What a run is doing. None and empty texts: not known.

    Attributes:
        state: "running", "stopped", "finished", "failed", or "not running".
        host, pid: The process.
        job: What it does now, or did last.
        position: The number of the job and the number of all, such as 3/21.
        step, total: The iteration within the job, and the number of iterations.
        note: The loss, or the accuracy so far.
        error: Why the run failed.
        finished_jobs: The accuracy of each finished job by name; None if it was not scored.
        seconds: The time since the process began, or that it took.
        remaining_seconds: An estimate for the job.
        updated_seconds: The age of these values.
        checkpoint_seconds: The age of the last checkpoint.
        tasks: The tasks on a cluster: the number of each state, and the nodes of those that run.
    """

    directory: str
    state: str
    host: str = ""
    pid: int | None = None
    device: str = ""
    job: str = ""
    position: str = ""
    step: float | None = None
    total: float | None = None
    note: str = ""
    error: str = ""
    finished_jobs: Mapping[str, float | None]
    seconds: float | None = None
    remaining_seconds: float | None = None
    updated_seconds: float | None = None
    checkpoint_seconds: float | None = None
    tasks: Mapping[str, Any]


def read_status(directory: Path) -> StatusReport:
    """Return what the run in a directory is doing.

    Raises:
        UserError: The directory does not contain a run.
    """
    check_run_exists(directory)
    stored, now = _read_object(directory / STATUS), time.time()
    state = _find_state(directory, stored, now)
    started, updated = (_number(stored, name) for name in ("started", "updated"))
    end = now if state == "running" else updated
    return StatusReport(
        directory=str(directory),
        state=state,
        host=_text(stored, "host"),
        pid=stored["pid"] if type(stored.get("pid")) is int else None,
        device=_text(stored, "device"),
        job=_text(stored, "job"),
        position=_text(stored, "position"),
        note=_text(stored, "note"),
        error=_text(stored, "error"),
        step=_number(stored, "step"),
        total=_number(stored, "total"),
        finished_jobs=_read_finished(directory),
        seconds=None if end is None or started is None else max(end - started, 0.0),
        remaining_seconds=_number(stored, "remaining_seconds") if state == "running" else None,
        updated_seconds=None if updated is None else max(now - updated, 0.0),
        checkpoint_seconds=_checkpoint_age(directory, now),
        tasks=_read_tasks(directory, _number(stored, "started") or 0.0),
    )


def _find_state(directory: Path, stored: Mapping[str, Any], now: float) -> str:
    """Return the state. The lock of the directory decides: a killed process cannot record its end."""
    state, locked = _text(stored, "state"), is_locked(directory)
    if locked:
        return "running"
    is_fresh = now - (_number(stored, "updated") or 0.0) < FRESH_SECONDS
    if state == "running" and is_fresh and (locked is None or _text(stored, "host") != socket.gethostname()):
        return "running"  # locks of other hosts may be invisible
    if state == "running":
        return "stopped"
    return state if state in ("stopped", "finished", "failed") else "not running"


def _read_finished(directory: Path) -> dict[str, float | None]:
    """Return the accuracies of the finished jobs of a run or an evaluation, or of the parts of an experiment."""
    finished = dict[str, float | None]()
    for path in sorted((directory / "parts").glob("**/record.json")):
        record = _read_object(path)
        finished[str(path.parent.relative_to(directory / "parts"))] = _accuracy(record)
    if finished:
        return finished
    with contextlib.suppress(UserError, ValueError, RecursionError):
        records = json.loads(read_file(directory / "results.json", MAX_BYTES))
        for record in records if isinstance(records, list) else ():
            if isinstance(record, dict):
                kind = " (validation)" if record.get("scored_on") == "validation" else ""
                finished[_name_record(record) + kind] = _accuracy(record)
    return finished


def _name_record(record: Mapping[str, Any]) -> str:
    if isinstance(record.get("file"), str):
        return f"{Path(record['file']).stem} on {record.get('network')}"
    ipc, method = record.get("ipc"), str(record.get("method"))
    if isinstance(ipc, list) and ipc and all(map(is_int, ipc)):
        return f"{method}-{min(ipc)}to{max(ipc)}"  # as `name_set`, whose module imports PyTorch, which takes seconds
    return method if ipc is None else f"{method}-{ipc}"


def _accuracy(record: Mapping[str, Any]) -> float | None:
    accuracy = record.get("accuracy_mean")
    return float(accuracy) if is_fraction(accuracy) and accuracy is not None else None


def _checkpoint_age(directory: Path, now: float) -> float | None:
    times = list[float]()
    for parent, _, names in os.walk(directory):  # it ignores directories that the run removes at this moment
        for name in names:
            if name.endswith(("checkpoint", "checkpoint.previous")):  # the last one is missing while it is written
                with contextlib.suppress(OSError):  # a new one may replace it at any time
                    times.append(os.stat(os.path.join(parent, name)).st_mtime)
    return max(now - max(times), 0.0) if times else None


def _read_tasks(directory: Path, since: float) -> dict[str, Any]:
    """Return the number of tasks in each state, and the nodes of the running ones."""
    states, nodes = dict[str, str](), dict[str, str]()
    with contextlib.suppress(UserError, OSError):
        for event in iter_events(directory / EVENTS, "task"):
            name, moment = event.get("name"), _number(event, "time")
            if isinstance(name, str) and moment is not None and moment >= since:
                states[name], nodes[name] = str(event.get("state")), str(event.get("node"))
    running = sorted({nodes[name] for name, state in states.items() if state == "started"})
    values = list(states.values())
    counts: dict[str, Any] = {state: values.count(state) for state in sorted(set(values))}
    return {**counts, "nodes": running} if counts else {}


def _read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one if the file is missing or damaged."""
    with contextlib.suppress(UserError, ValueError, RecursionError):
        content = json.loads(read_file(path, MAX_STATUS_BYTES))
        if isinstance(content, dict):
            return content
    return {}


def _text(values: Mapping[str, Any], name: str) -> str:
    return values[name] if isinstance(values.get(name), str) else ""


def _number(values: Mapping[str, Any], name: str) -> float | None:
    return values[name] if is_number(values.get(name)) else None
