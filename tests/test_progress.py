from __future__ import annotations

import io
import sys

import pytest

import condenset as cs
from condenset.progress import progress_bar
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
