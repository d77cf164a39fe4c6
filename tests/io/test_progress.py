"""Progress display: the bar on a terminal, the lines elsewhere, and the warning about long tasks."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import condenset as cs
from condenset.data import check_dataset, import_dataset
from condenset.engine import ComputeDevice
from condenset.io import progress
from condenset.io.progress import (
    NullProgress,
    ProgressBar,
    format_duration,
    limit_progress,
    print_notice,
    show_progress,
)
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from helpers.reference_dm import tiny_data


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal and return it. Not a fixture: pytest replaces the stream after the setup."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def advance_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the clock of the progress display."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    return advance


def test_terminal_shows_a_bar_and_nested_bars_stay_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with show_progress("reading things", 10) as advance:
        advance(10)
        with show_progress("inner things", 5) as advance_inner:
            advance_inner(5)
        with pytest.raises(KeyError), show_progress("failing things", 5):
            raise KeyError
        advance(0)
    text = terminal.getvalue()
    assert "reading things" in text and "100%" in text and "inner" not in text and "failing" not in text
    with show_progress("again") as advance:
        advance(1)
    assert "again" in terminal.getvalue()


def test_a_silent_block_stays_silent_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with limit_progress(False), limit_progress(True), show_progress("reading things", 10):
        print_notice("a notice")
    assert terminal.getvalue() == ""
    print_notice("another notice")
    assert terminal.getvalue() == "another notice\n"


def test_bar_has_rate_note_and_time_remaining(
    monkeypatch: pytest.MonkeyPatch, advance_clock: Callable[[float], None]
) -> None:
    terminal = use_terminal(monkeypatch)
    bar = ProgressBar()
    bar.start("learning", 400)
    bar.update(0)
    advance_clock(10)
    bar.update(100, "loss 2")
    bar.bar.refresh()  # type: ignore[union-attr]
    bar.stop()
    assert all(part in terminal.getvalue() for part in ("25%", "10/s", "loss 2", "about 30 s remaining"))


@pytest.mark.parametrize(("step_seconds", "shown"), [(1.5, "27 of 40"), (3.0, "13.8 of 40")])
def test_lines_have_whole_numbers_unless_a_step_is_slow(
    capsys: pytest.CaptureFixture[str], advance_clock: Callable[[float], None], step_seconds: float, shown: str
) -> None:
    bar = ProgressBar()
    bar.start("learning", 40)
    bar.update(0)
    advance_clock(41.4)
    bar.update(41.4 / step_seconds)
    bar.stop()
    assert f"learning: {shown}" in capsys.readouterr().err


def test_bytes_are_counted_in_binary_units(
    advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBar()
    bar.start("file.zip", 100 << 20, unit="B")
    bar.update(0)
    advance_clock(30)
    bar.update(75 << 20)
    bar.stop()
    assert capsys.readouterr().err == "file.zip: 75 MiB of 100 MiB, about 10 s remaining\n"


def test_short_tasks_print_nothing_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress("reading", 10) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", None)
    with show_progress("reading", 10) as advance:
        advance(3)


def test_python_functions_show_a_bar_unless_verbose_is_false(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    data, test_set = tiny_data([4, 4]), tiny_data([4, 4], seed=1)
    options = {"num_networks": 1, "epochs": 1, "network": "convnet(width=8, depth=2)", "device": "cpu"}
    condensed = cs.condense(data, "mmd", ipc=1, iterations=2, device="cpu", verbose=False)
    cs.evaluate(condensed, test_set, verbose=False, **options)
    cs.load("digits", verbose=False)
    condensed.to_folder("set", verbose=False)
    cs.load("set", verbose=False)
    import_dataset("set", "imported", verbose=False)
    check_dataset("set", verbose=False)
    assert terminal.getvalue() == ""
    cs.condense(data, "mmd", ipc=1, iterations=2, device="cpu")
    assert "mmd, 1 per class" in terminal.getvalue()
    cs.evaluate(condensed, test_set, **options)
    assert "training networks" in terminal.getvalue()
    cs.load("digits")
    assert "reading digits" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", None)
    cs.condense(data, "mmd", ipc=1, iterations=2, device="cpu")


def test_log_gets_a_line_every_30_seconds(
    advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBar()
    bar.job_label = "3/21"
    bar.start("dm, 1 per class", 400)
    for done in range(1, 101):
        advance_clock(1)
        bar.update(done, "loss 2")
    bar.stop()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "3/21 dm, 1 per class: 30 of 400, loss 2, about 6 min remaining"
    assert len(lines) == 3


def test_log_of_many_short_tasks_gets_lines_too(
    advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBar()
    for part in range(1, 11):
        bar.job_label = f"{part}/10"
        bar.start("testing", 10)
        for done in range(1, 11):
            advance_clock(1)
            bar.update(done)
        bar.stop()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["3/10", "6/10", "9/10"]


def test_warning_covers_the_whole_run(
    advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    estimates = []

    def estimate_run(total: int | None, step_seconds: float, remaining: float) -> tuple[float, str]:
        estimates.append((total, step_seconds, remaining))
        return later + remaining, "text"

    bar = ProgressBar()
    bar.estimate_run = estimate_run
    for later in (500, 600):  # short tasks of short and of long runs
        bar.start("learning", 10)
        for done in range(8):
            bar.update(done)
            advance_clock(1)
        bar.stop()
        assert capsys.readouterr().err == ("learning: text\n" if later == 600 else "")
    assert estimates == [(10, 1.0, 4.0), (10, 1.0, 3.0), (10, 1.0, 4.0)]  # not before five seconds, not after the text


def test_long_run_warns_once_after_five_seconds(
    advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    bar = ProgressBar()
    bar.start("learning", 10_000)
    for done in range(8):
        bar.update(done)
        advance_clock(1)
    bar.stop()
    assert capsys.readouterr().err == "learning: about 2.8 h remaining at 1/s\n"
    bar.start("scoring", 20_000)  # of the same run
    for done in range(8):
        bar.update(done)
        advance_clock(1)
    bar.stop()
    assert capsys.readouterr().err == ""


def test_first_step_does_not_count(advance_clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.start("learning", 100)
    advance_clock(1000)  # compilation
    for done in range(1, 100):
        bar.update(done)
        advance_clock(0.1)
    bar.stop()
    assert "min" not in capsys.readouterr().err


def test_durations() -> None:
    seconds = (0.1234, 7.21, 95, 12 * 60, 3.5 * 3600, 4 * 86400)
    assert [format_duration(value) for value in seconds] == ["1 s", "7 s", "95 s", "12 min", "3.5 h", "4 days"]


@pytest.mark.parametrize("requested_in", ["training", "testing"])
def test_stop_request_is_prompt_and_saves_trained_networks(requested_in: str, tmp_path: Path) -> None:
    data = tiny_data([20, 20])

    class StopsAt(NullProgress):
        num_updates = 0

        def update(self, done: float, note: str = "") -> None:
            if (note == "testing") == (requested_in == "testing"):
                run.stop.requested = 2
                self.num_updates += 1

    display = StopsAt()
    run = RunContext(compute=ComputeDevice.select("cpu"), directory=tmp_path, progress=display)
    protocol = Protocol(network="convnet(width=4, depth=1)", num_networks=2, epochs=2, batch_size=4)
    with pytest.raises(Interrupted):
        score_set(data, data, protocol, run)
    num_networks = len(run.read_events("network"))
    assert num_networks == (requested_in == "testing")
    assert display.num_updates == (1 if requested_in == "training" else num_networks)


def test_a_bar_in_percent_has_no_rate(monkeypatch: pytest.MonkeyPatch, advance_clock: Callable[[float], None]) -> None:
    terminal = use_terminal(monkeypatch)
    bar = ProgressBar()
    bar.start("writing the report", 100, unit="%")
    bar.update(0.0)
    advance_clock(10)
    bar.update(25.0)
    bar.bar.refresh()  # type: ignore[union-attr]
    bar.stop()
    assert "about 30 s remaining" in terminal.getvalue() and "/s" not in terminal.getvalue()


def test_progress_in_percent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], advance_clock: Callable[[float], None]
) -> None:
    bar = ProgressBar()
    advance_clock(60)  # another task
    bar.start("writing the report", 100, unit="%")
    bar.update(0.0)
    advance_clock(1)
    bar.update(1.0)
    assert capsys.readouterr().err == ""  # it may be complete in a moment
    advance_clock(30)
    bar.update(50.0)
    bar.stop()
    assert capsys.readouterr().err == "writing the report: 50% of 100%, about 31 s remaining\n"
