"""Settings are compared on images that are held out, and a second call continues after the last row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import settings
import typer
from typer.testing import CliRunner

from condenset.errors import UserError

OPTIONS = ["digits", "--ipc", "1", "--nets", "1", "--epochs", "2", "--device", "cpu", "--set", "iterations=2"]


def test_the_first_classes_alone() -> None:
    splits = settings.split_images("digits", None, 3, 0.1, 0)
    assert [data.class_names for data in splits] == [("0", "1", "2")] * 2
    assert [set(data.labels.tolist()) for data in splits] == [{0, 1, 2}] * 2
    with pytest.raises(UserError, match="--classes must be at most 10"):
        settings.split_images("digits", None, 11, 0.1, 0)


def test_each_row_has_its_settings_and_a_score(tmp_path: Path) -> None:
    app, out = typer.Typer(), tmp_path / "rows.json"
    app.command()(settings.main)
    first = CliRunner().invoke(app, [*OPTIONS, "--try", "lr=1", "--out", str(out)])
    assert first.exit_code == 0, first.output
    second = CliRunner().invoke(app, [*OPTIONS, "--try", "lr=1", "--try", "lr=4", "--out", str(out)])
    assert "iterations=2 lr=4" in second.output and "iterations=2 lr=1" not in second.output
    records = json.loads(out.read_text())
    assert [record["settings"] for record in records] == ["iterations=2 lr=1", "iterations=2 lr=4"]
    assert all(0 < record["accuracy_mean"] <= 1 for record in records)
