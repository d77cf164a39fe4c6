"""List the runs below a directory, with their state, dataset, methods and accuracies, from their files alone."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.errors import UserError
from condenset.io.metadata import CONFIG_FILES, holds_config, read_toml
from condenset.runs.status_report import STATUS, StatusReport, read_status

MAX_DEPTH = 6  # of directories below the one that is listed
MAX_RUNS = 1000
MAX_DIRECTORIES = 20_000  # to look into
REPORT = "report.html"
WATCHED_FILES = (STATUS, "results.json", REPORT, *CONFIG_FILES)


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run in a list.

    Attributes:
        name: Its path, relative to the listed directory.
        kind: "run", "evaluation" or "experiment".
        dataset: The name of the dataset; empty if it is not known.
        methods: What it computes: methods, sets or the name of the experiment.
        status: What it is doing.
        has_report: The directory contains a report.
    """

    name: str
    kind: str
    dataset: str
    methods: tuple[str, ...]
    status: StatusReport
    has_report: bool


class RunList:
    """The runs below a directory. Files that have not changed are not read again.

    Args:
        directory: The directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cache: dict[Path, tuple[object, RunSummary]] = {}

    def read(self) -> list[RunSummary]:
        """Return all runs: those that are active first, then the others, the last changed one first."""
        paths = find_runs(self.directory)
        summaries = {path: summary for path in paths if (summary := self._summarize(path)) is not None}
        self._cache = {path: entry for path, entry in self._cache.items() if path in summaries}
        order = sorted(summaries, key=lambda path: (not _is_active(summaries[path]), -_last_change(path)))
        return [summaries[path] for path in order]

    def find(self, name: str) -> Path | None:
        """Return the directory of a run by its name in the list, or None: other paths are never looked up."""
        return next((path for path in find_runs(self.directory) if _name(path, self.directory) == name), None)

    def _summarize(self, path: Path) -> RunSummary | None:
        state = [_modification_time(path / name) for name in WATCHED_FILES]
        cached = self._cache.get(path)
        if cached and cached[0] == state and not _is_active(cached[1]):
            return cached[1]
        with contextlib.suppress(UserError, OSError):  # it is deleted at this moment
            summary = summarize_run(path, self.directory)
            self._cache[path] = (state, summary)
            return summary
        return None


def find_runs(directory: Path) -> list[Path]:
    """Return the directories of runs below a directory, and the directory itself if it is one, without links."""
    visited = itertools.islice(_walk(directory, 0), MAX_DIRECTORIES)
    return list(itertools.islice((path for path, is_run in visited if is_run), MAX_RUNS))


def _walk(directory: Path, depth: int) -> Iterator[tuple[Path, bool]]:
    """Yield a directory and those below it, and whether each is a run. The directories in a run are left out."""
    is_run = _is_run(directory)
    yield directory, is_run
    if depth == MAX_DEPTH or is_run:
        return
    with contextlib.suppress(OSError):  # no permission, or deleted
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            is_visible = not entry.name.startswith(".") and _is_text(entry.name)
            if is_visible and entry.is_dir(follow_symlinks=False):
                yield from _walk(directory / entry.name, depth + 1)


def _is_run(directory: Path) -> bool:
    with contextlib.suppress(UserError, OSError):
        return holds_config(directory)
    return False


def _is_text(name: str) -> bool:
    """Return whether a file name is text. Others can be neither printed nor put into an address."""
    with contextlib.suppress(UnicodeEncodeError):
        return bool(name.encode())
    return False


def summarize_run(path: Path, parent: Path) -> RunSummary:
    """Return the summary of the run in a directory below `parent`."""
    config_name = next((name for name in CONFIG_FILES if (path / name).is_file()), CONFIG_FILES[-1])
    config: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # damaged
        config = read_toml(path / config_name)
    kind = config_name.removesuffix(".toml").replace("recipe", "run")
    return RunSummary(
        name=_name(path, parent),
        kind=kind,
        dataset=_find_dataset(config),
        methods=_list_methods(config),
        status=read_status(path),
        has_report=(path / REPORT).is_file(),
    )


def _find_dataset(config: Mapping[str, Any]) -> str:
    """Return the name of the dataset of a run, or of the first set of an evaluation."""
    values: list[object] = [config.get("dataset"), *(job.get("made_from") for job in _jobs(config))]
    return next((Path(value).name for value in values if isinstance(value, str) and value), "")


def _list_methods(config: Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(config.get("experiment"), str):
        return (config["experiment"],)
    names = [job.get("method", Path(str(job.get("file", ""))).stem) for job in _jobs(config)]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def _jobs(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    jobs = config.get("jobs")
    return [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []


def _name(path: Path, parent: Path) -> str:
    return path.name or str(path) if path == parent else path.relative_to(parent).as_posix()


def _is_active(summary: RunSummary) -> bool:
    return summary.status.state == "running"


def _last_change(path: Path) -> int:
    return max(_modification_time(path / name) for name in WATCHED_FILES)


def _modification_time(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
