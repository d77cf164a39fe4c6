from __future__ import annotations

import io
import signal
import sys
import warnings
from collections.abc import Sequence

import pytest

from condenset import UserError, progress
from condenset.cli_shared import watched
from condenset.console import Shown, interruptible, plain_warnings, print_scores, print_table, span
from condenset.engine import Place
from condenset.runs import Run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def play(shown: Shown, clock: Clock, steps: Sequence[int], total: int, seconds: float) -> None:
    shown.start("a set in a folder with a long name: testing", total)  # longer than a line of 80 with what follows
    for done in steps:
        clock.now += seconds
        shown.update(done, "loss 1.5")
    shown.stop()


def test_what_takes_over_ten_minutes_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(Shown(), Clock(monkeypatch), range(1, 10), 1000, 3.0)
    out, err = capsys.readouterr()
    assert out == ""
    text = "a set in a folder with a long name: testing: about 50 min to go at this rate (0.333 steps a second)"
    assert err == text + "\n"


def test_what_takes_less_than_half_a_minute_is_quiet_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some machines that run tests set it
    play(Shown(), Clock(monkeypatch), range(1, 10), 200, 3.0)
    assert capsys.readouterr() == ("", "")


def test_the_rate_counts_neither_what_was_done_before_a_resume_nor_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, shown = Clock(monkeypatch), Shown()
    shown.start("dm", 10_000, 9_000)
    clock.now += 100  # kernels are built
    shown.update(9_001)
    assert capsys.readouterr().err == "dm: 9001 of 10000\n"
    clock.now += 10
    shown.update(9_002)
    assert "about 2.8 h to go at this rate (0.1 steps a second)" in capsys.readouterr().err


def test_a_terminal_gets_a_bar_with_rate_loss_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    clock, shown = Clock(monkeypatch), Shown()
    shown.start("sets/[a]: testing", 100)
    shown.update(0)
    clock.now += 10
    shown.update(20, "loss 1.5")
    assert shown.bar is not None
    shown.bar.refresh()
    text = sys.stderr.getvalue()
    shown.stop()
    for part in ("sets/[a]: testing", "━", "20%", "2/s", "loss 1.5", ":"):
        assert part in text
    assert shown.bar is None


def test_spans() -> None:
    assert [span(seconds) for seconds in (1.25, 95, 720, 12_600, 345_600)] == [
        "1.25 s",
        "95 s",
        "12 min",
        "3.5 h",
        "4 days",
    ]


def test_brackets_in_a_table_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "120")
    print_table(("network", "options"), [("convnet", "norm='instance' [none, batch, instance]")])
    assert "norm='instance' [none, batch, instance]" in sys.stdout.getvalue()
    assert "┃" in sys.stdout.getvalue()


@pytest.mark.parametrize(("width", "turned"), [("60", True), ("120", False)])
def test_a_table_too_wide_for_the_terminal_is_turned(monkeypatch: pytest.MonkeyPatch, width: str, turned: bool) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", width)
    methods = ("random", "herding", "forgetting", "dsa", "dm", "whole dataset")
    print_table(("images a class", *methods), [("1", *["20.1 ± 0.4"] * 6), ("10", *["63.0 ± 0.4"] * 6)])
    lines = sys.stdout.getvalue().splitlines()
    assert len(lines[0]) <= int(width)
    assert sum("20.1 ± 0.4" in line for line in lines) == (6 if turned else 1)
    assert all(any(name in line for line in lines) for name in methods)


def test_a_table_that_fits_neither_way_is_folded_and_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "30")
    print_table(("network", "options"), [("a" * 40, "some words " * 9)] * 3)
    text = sys.stdout.getvalue()
    assert text.count("a") == 3 * 40 and "…" not in text


def test_a_table_that_nobody_watches_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "long name"), [("first", "x"), ("2", "[y]")])
    assert capsys.readouterr().out == "a      long name\nfirst  x\n2      [y]\n"


def test_scores_are_percentages_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    scored = {"accuracy_mean": 0.9301, "accuracy_std": 0.0042, "accuracies": [0.9, 0.95], "network": "convnet"}
    print_scores(
        [
            {"method": "dm", "ipc": 10, **scored, "condense_seconds": 12.34, "evaluate_seconds": 5.0},
            {"method": "dm", "ipc": 1, "network": None, "condense_seconds": 12.34, "together": [1, 10]},
            {"method": "whole", "ipc": None, **scored, "condense_seconds": 0.0, "evaluate_seconds": 5.0},
            {"method": "random", "ipc": 1, "network": None, "condense_seconds": 0.2},
            {"method": None, "ipc": None, "network": None, "condense_seconds": None},
        ]
    )
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["method", "images a class", "accuracy %", "networks", "condense s", "evaluate s"],
        ["dm", "10", "93.0 ± 0.4", "2 × convnet", "12.3", "5.0"],
        ["dm", "1", "-", "-", "12.3 for 1, 10", "-"],
        ["whole", "all", "93.0 ± 0.4", "2 × convnet", "-", "5.0"],
        ["random", "1", "-", "-", "0.2", "-"],
        ["-", "-", "-", "-", "-", "-"],
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_stops(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(place=Place.best("cpu"))
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), interruptible(run):
        run.listening = True
        signal.raise_signal(number)
        assert run.stop_requested == number
        assert "stopping after this step" in capsys.readouterr().err
        signal.raise_signal(number)
        raise AssertionError("the second did not stop it")
    run = Run(place=Place.best("cpu"))
    with pytest.raises(KeyboardInterrupt), interruptible(run):
        signal.raise_signal(number)  # no loop is under way that would look
        raise AssertionError("it did not stop")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, UserError])
def test_a_stop_that_comes_out_of_a_library_as_an_error_is_a_stop(kind: type[Exception]) -> None:
    run = Run(place=Place.best("cpu"))
    with pytest.raises(SystemExit) as ended, watched(run):
        run.stop_requested = 2
        raise kind("half-way through")
    assert ended.value.code == 130
    with pytest.raises(kind), watched(Run(place=Place.best("cpu"))):
        raise kind("nobody asked to stop")


def test_a_warning_is_one_line_without_torchs_innards(capsys: pytest.CaptureFixture[str]) -> None:
    with plain_warnings():
        warnings.simplefilter("always")
        warnings.warn(
            "a kernel failed,\nanother is taken.\nException raised from f at g.cpp:7\nframe #0: …", stacklevel=1
        )
    assert capsys.readouterr().err == "condenset: warning: a kernel failed, another is taken.\n"
