"""The command `condenset status`."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.console import print_json, print_line, print_preview
from condenset.cli.options import AsJson, expand_path
from condenset.errors import UserError, escape_controls, format_command

if TYPE_CHECKING:
    from condenset.runs.status_report import StatusReport

WATCH_SECONDS = 2.0  # between two looks
MAX_FINISHED = 10  # jobs with their accuracy


def status_command(
    directory: Annotated[
        Path,
        typer.Argument(metavar="RUN", callback=expand_path, help="Directory of a run, an evaluation or an experiment."),
    ],
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a run is doing, from another terminal. It only reads files, so the run is not disturbed."""
    from condenset.runs.status_report import read_status

    if watch and as_json:
        raise UserError("--watch and --json exclude each other: give one of the two")
    report = read_status(directory)
    if as_json:
        print_json(dataclasses.asdict(report))
    elif watch:
        _watch(directory)
    else:
        print_preview(describe_status(report), as_json=False)


def _watch(directory: Path) -> None:
    """Show the status until the run ends: on a terminal in place, else a line whenever it changes."""
    if not sys.stdout.isatty():
        last = ""
        for report in _iter_reports(directory):
            line = _summarize(report)
            if line != last:
                print_line(line)
                sys.stdout.flush()
            last = line
        return
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        for report in _iter_reports(directory):
            rows = describe_status(report)
            text = "\n".join(f"{label:12}{escape_controls(value)}" for label, value in rows.items())
            live.update(Text(text), refresh=True)


def _iter_reports(directory: Path) -> Iterator[StatusReport]:
    """Yield the status every two seconds. The last one is that of a run that has ended."""
    from condenset.runs.status_report import read_status

    while True:
        report = read_status(directory)
        yield report
        if report.state != "running":
            return
        time.sleep(WATCH_SECONDS)


def describe_status(report: StatusReport) -> dict[str, str]:
    """Return the lines of a report by label. What is not known is left out."""
    from condenset.io.progress import format_duration

    is_running, is_finished = report.state == "running", report.state == "finished"
    ages = {"updated": report.updated_seconds, "checkpoint": report.checkpoint_seconds}
    rows = {
        "run": report.directory,
        "state": _describe_state(report),
        "device": report.device,
        "job" if is_running else "last job": "" if is_finished else f"{report.position} {report.job}".strip(),
        "step": "" if is_finished else _describe_step(report),
        "tasks": _describe_tasks(report),
        "time": "" if report.seconds is None else format_duration(report.seconds),
        "remaining": ""
        if report.remaining_seconds is None
        else f"about {format_duration(report.remaining_seconds)} for this job",
        "finished": _describe_finished(report),
        **{label: "" if age is None else f"{format_duration(age)} ago" for label, age in ages.items()},
    }
    return {label: text for label, text in rows.items() if text}


def _describe_state(report: StatusReport) -> str:
    process = f" (process {report.pid} on {report.host})" if report.pid is not None else ""
    if report.state == "running":
        return f"running{process}"
    command = format_command("resume", report.directory)
    hint = f"; continue with: {command}" if report.state != "finished" else ""
    error = f": {' '.join(report.error.split())}" if report.error else ""
    host = f" on {report.host}" if report.host else ""
    return f"{report.state}{host}{error}{hint}"


def _describe_step(report: StatusReport) -> str:
    if report.step is None:
        return ""
    total = f" of {report.total:,.0f} ({100 * report.step / report.total:.0f}%)" if report.total else ""
    return f"{report.step:,.0f}{total}{f', {report.note}' if report.note else ''}"


def _describe_tasks(report: StatusReport) -> str:
    counts = [f"{count} {state}" for state, count in report.tasks.items() if state != "nodes"]
    nodes = ", ".join(report.tasks.get("nodes", ()))
    return ", ".join(counts) + (f", on {nodes}" if nodes else "")


def _describe_finished(report: StatusReport) -> str:
    jobs = list(report.finished_jobs.items())
    if not jobs:
        return ""
    texts = [name if accuracy is None else f"{name} {100 * accuracy:.1f}%" for name, accuracy in jobs[-MAX_FINISHED:]]
    return f"{len(jobs)}: {'…, ' * (len(jobs) > MAX_FINISHED)}{', '.join(texts)}"


def _summarize(report: StatusReport) -> str:
    rows = describe_status(report)
    labels = ("state", "job", "last job", "step", "remaining")
    return "; ".join(rows[label] for label in labels if label in rows)
