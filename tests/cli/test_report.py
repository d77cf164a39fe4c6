"""`condenset report`, and the reports that other commands write."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from condenset.engine import ComputeDevice
from condenset.pipeline.report import run as report
from condenset.runs.context import RunContext
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, read_files

RUN = ("--ipc", 1, "--method", "random", *TINY_NETWORK, *TINY_EVALUATION, "--no-whole", "--out", "a")


@pytest.fixture
def finished(condenset: CommandRunner, toy: Path) -> Path:
    assert condenset("run", toy, *RUN).code == 0
    return Path("a")


def test_report_is_written_into_the_run_or_to_a_file(condenset: CommandRunner, finished: Path) -> None:
    before = read_files(finished)
    assert condenset("report", finished).out == "a/report.html\n"
    page = (finished / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "3 selected real images replace 36: " in page
    assert condenset("report", finished).code == 0  # its own file is replaced
    assert condenset("report", finished, "--out", "page.html").out == "page.html\n"
    assert "page.html exists already" in condenset("report", finished, "--out", "page.html").error_line
    assert condenset("report", finished, "--out", "page.html", "--overwrite").code == 0
    after = read_files(finished)
    after.pop("report.html")
    assert after == before


def test_mistakes_are_one_line(condenset: CommandRunner, finished: Path) -> None:
    assert "must be an .html file, but got 'page.pdf'" in condenset("report", finished, "--out", "page.pdf").error_line
    assert "no such directory: none" in condenset("report", "none").error_line
    assert "needs a file: give --out" in condenset("report", finished, finished).error_line
    negative = condenset("report", finished, "--nets", -1)
    assert negative.error_line == "--nets must be a whole number, 0 or more, but got -1"
    assert condenset("report", finished, "--nets", "1.5").error_line == "--nets must be a whole number, but got '1.5'"
    assert "snapshots must be at most 100" in condenset("run", "digits", "--snapshots", 101).error_line


@pytest.mark.charts
def test_experiment_writes_a_report_with_its_figure(condenset: CommandRunner, fast_tiny: None) -> None:
    command = ("paper", "sizes", "--scale", "tiny", "--methods", "random", "--ipc", 1, "--device", "cpu", "--out", "a")
    result = condenset(*command)
    assert "report   a/report.html" in result.out
    page = Path("a/report.html").read_text()
    assert '<img class="figure" src="data:image/png;base64,' in page
    assert '<section id="methods"' in page


@pytest.mark.filterwarnings("default")
def test_report_that_cannot_be_written_is_a_warning(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.pipeline.run.write_run_report", report.write_run_report)
    monkeypatch.setattr(report, "REPORT", "results.json/report.html")
    result = condenset("run", toy, *RUN)
    assert result.code == 0
    assert "condenset: warning: there is no report: " in result.err


@pytest.mark.filterwarnings("default")
def test_a_bug_in_the_report_does_not_hide_the_result(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []

    def fail(*_: object) -> None:
        printed.append(capsys.readouterr().out)
        raise KeyError("no such column")

    monkeypatch.setattr("condenset.pipeline.run.write_run_report", report.write_run_report)
    monkeypatch.setattr(report, "collect_content", fail)
    result = condenset("run", toy, *RUN)
    assert result.code == 0
    assert "random" in printed[0] and "results  a/results.json" in printed[0]  # before the report is written
    warning = "warning: there is no report: KeyError: 'no such column'; write it with 'condenset report a'"
    assert result.err.splitlines()[-1] == f"condenset: {warning}"
    assert json.loads(condenset("status", "a", "--json").out)["state"] == "finished"
    with pytest.raises(KeyError):  # a traceback, to find the bug
        condenset("report", "a")


def test_a_stop_while_the_report_is_written_is_not_a_bug(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        run.stop.requested = signal.SIGINT
        raise RuntimeError("stopped by a signal")

    run = RunContext(compute=ComputeDevice.select("cpu"), directory=finished)
    monkeypatch.setattr(report, "collect_content", stop)
    with pytest.raises(RuntimeError):
        report.write_run_report(run)


def test_resume_writes_the_report_and_keeps_a_recent_one(
    condenset: CommandRunner, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.pipeline.run.write_run_report", report.write_run_report)
    assert condenset("resume", finished, "--no-report").code == 0
    assert not (finished / "report.html").exists()
    assert "report   a/report.html" in condenset("resume", finished).out
    before = read_files(finished)
    assert condenset("resume", finished).code == 0
    assert read_files(finished) == before


def test_overwriting_a_run_removes_its_report_and_snapshots(
    condenset: CommandRunner, finished: Path, toy: Path
) -> None:
    assert condenset("report", finished).code == 0
    snapshot = finished / "snapshots" / "dm-1" / "0.safetensors"
    snapshot.parent.mkdir(parents=True)
    snapshot.touch()
    (finished / "snapshots" / "scores.json").touch()
    assert condenset("run", toy, *RUN, "--overwrite").code == 0
    assert not (finished / "snapshots").exists()
    assert not (finished / "report.html").exists()
