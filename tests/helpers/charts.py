"""Charts and reports without drawing, which takes longer than a tiny run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from condenset.experiments import runner, start
from condenset.io.files import write_file
from condenset.pipeline import run
from condenset.report import charts


def save_blank_chart(figure: object, path: Path) -> None:
    """Write the files of a chart as `save_chart` does, but empty."""
    for suffix in (".svg", ".png"):
        write_file(path.with_suffix(suffix), b"")


def skip_drawing(replace: Callable[[object, str, object], None]) -> None:
    """Write blank charts, no reports and no snapshots. `replace` is `setattr`, or that of a monkeypatch."""
    for module in (charts, runner):
        replace(module, "save_chart", save_blank_chart)
    for module in (run, start):
        replace(module, "write_run_report", lambda *arguments: None)
    replace(run, "DEFAULT_SNAPSHOTS", 0)
