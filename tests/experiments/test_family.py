"""The experiment `family`: later methods, scored by both protocols."""

from __future__ import annotations

from pathlib import Path

import pytest

from condenset.data.image_data import Splits
from helpers.experiment_recorder import Recorder, make_context, run_in
from helpers.experiment_runs import run_tiny

FAMILY = ("random", "dm", "idm", "datadam", "m3d", "dsdm", "dance", "tgdd", "ncfm", "dmplus")


def test_every_set_is_scored_by_both_protocols(recorder: Recorder, tmp_path: Path) -> None:
    context = make_context("family", tmp_path, "small", ipcs=(1, 2))
    result = run_in(context, "family")
    assert list(recorder.condensed) == [f"{method}-{ipc}" for ipc in (1, 2) for method in FAMILY]
    assert context.num_parts == len(recorder.condensed) + len(recorder.scored) == 60
    schedules = {name: call.protocol.schedule for name, call in recorder.scored.items()}
    assert schedules["dmplus-2-modern"] == "modern" and schedules["dmplus-2-paper"] == "paper"
    columns = [f"{ipc} per class, {protocol}" for ipc in (1, 2) for protocol in ("paper", "modern")]
    assert result.table.columns == ("method", *columns)
    assert [row[0] for row in result.table.rows] == list(FAMILY)
    assert len(result.records) == 40


def test_the_user_can_name_one_protocol(recorder: Recorder, tmp_path: Path) -> None:
    context = make_context("family", tmp_path, methods=("dm",), ipcs=(1,), protocol_fields={"protocol": "modern"})
    assert run_in(context, "family").table.columns == ("method", "1 per class, modern")
    assert list(recorder.scored) == ["dm-1-modern"]


@pytest.mark.usefixtures("fast_tiny")
def test_a_finished_family_is_not_repeated(splits: Splits, tmp_path: Path) -> None:
    settings = {"methods": ("random", "dmplus"), "settings": ("dmplus.partition=2",)}
    first = run_tiny("family", splits, tmp_path, **settings)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*.*")}
    second = run_tiny("family", splits, tmp_path, **settings)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "parts").rglob("*.*")} == files
    assert second.table == first.table
    storage = [(record["images"], record["storage_bytes"]) for record in first.records]
    assert storage == [(3, 2304), (3, 2304), (12, 2304), (12, 2304)]
    assert [record["protocol"] for record in first.records] == ["paper", "modern"] * 2
