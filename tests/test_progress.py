from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import condenset as cs
from condenset import progress
from condenset.engine import Place
from condenset.evaluation import score
from condenset.progress import Silent, progress_bar
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run
from plain import tiny_data


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("unit", ["images", "B"])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress_bar("reading things", 10, unit) as advance:
        advance(10)
        with progress_bar("inner things", 5) as inner:  # a bar inside a bar stays silent
            inner(5)
    text = sys.stderr.getvalue()
    assert "reading things" in text and "inner" not in text and "10" in text
    with progress_bar("again") as advance:
        advance(1)
    assert "again" in sys.stderr.getvalue()


def test_anything_else_gets_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("reading", 10) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    with progress_bar("reading", 10) as advance:
        advance(3)


def test_python_users_see_a_bar_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    data = tiny_data([4, 4])
    small = cs.condense(data, "mmd", ipc=1, iterations=2, device="cpu")
    assert "mmd, 1 a class" in sys.stderr.getvalue()
    cs.evaluate(small, data, nets=1, epochs=1, network="convnet(width=8, depth=2)", device="cpu")
    assert "training networks" in sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    cs.condense(data, "mmd", ipc=1, iterations=2, device="cpu")


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = progress.Shown()
    shown.part = "3/21"
    shown.start("dm, 1 a class", 400)
    for done in range(1, 101):
        now += 1.0
        shown.update(done, "loss 2")
    shown.stop()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3/21 dm, 1 a class: 30 of 400, loss 2, about 6 min to go"
    assert len(lines) == 3


def test_a_log_of_many_short_parts_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = progress.Shown()
    for part in range(1, 11):
        shown.part = f"{part}/10"
        shown.start("testing", 10)
        for done in range(1, 11):
            now += 1.0
            shown.update(done)
        shown.stop()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["3/10", "6/10", "9/10"]


@pytest.mark.parametrize("asked_in", ["training", "testing"])
def test_a_stop_does_not_wait_for_the_end_of_a_pass_but_loses_no_trained_network(asked_in: str, tmp_path: Path) -> None:
    data = tiny_data([20, 20])

    class StopsAt(Silent):
        seen = 0

        def update(self, done: int, note: str = "") -> None:
            if (note == "testing") == (asked_in == "testing"):
                run.stop_requested = 2
                self.seen += 1

    run = Run(place=Place.best("cpu"), folder=tmp_path, progress=StopsAt())
    protocol = Protocol(network="convnet(width=4, depth=1)", nets=2, epochs=2, batch=4)
    with pytest.raises(Interrupted):
        score(data, data, protocol, run)
    assert len(run.events("network")) == (asked_in == "testing")
    assert run.progress.seen == (1 if asked_in == "training" else len(run.events("network")))
