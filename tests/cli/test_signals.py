"""Signals: exit codes, messages and handlers."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from condenset import UserError
from condenset.__main__ import main as run_process
from condenset.cli import main
from condenset.cli.signals import SIGNALS, exit_on_signal
from condenset.engine import ComputeDevice
from condenset.io.metadata import CONFIG_MARK
from condenset.runs.context import RunContext, StopState
from condenset.runs.loop import Interrupted, track_progress

CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture(autouse=True)
def handlers_restored() -> Iterator[None]:
    """Make SIGINT interrupt, which shells disable in the background, and check that all handlers are restored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    handlers = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    signal.signal(signal.SIGINT, previous)


def make_run(*, listening: bool) -> RunContext:
    return RunContext(compute=ComputeDevice.select("cpu"), stop=StopState(listening=listening))


@pytest.mark.parametrize(("number", "code"), CODES)
def test_the_first_signal_asks_a_loop_to_stop_and_the_second_stops(
    number: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(listening=True)
    with pytest.raises(SystemExit) as exit_info, exit_on_signal(run, "Resume with: x"):
        signal.raise_signal(number)
        assert run.stop.requested == number
        signal.raise_signal(number)
        raise AssertionError("the second signal did not stop the run")
    assert exit_info.value.code == code
    first, second = "stopping … (press Ctrl-C again to stop at once)", "stopped. Resume with: x"
    assert capsys.readouterr().err == f"\n{first}\n{second}\n"


def test_a_signal_asks_the_loop_of_a_derived_run_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(listening=False)
    with (
        pytest.raises(SystemExit),
        exit_on_signal(run),
        track_progress(run, "outer", 9) as report_outer,
    ):
        with pytest.raises(Interrupted), track_progress(run.derive(job="pool"), "pool", 9) as report:
            signal.raise_signal(signal.SIGINT)
            report(1)
        assert run.stop.listening, "the outer loop still runs"
        report_outer(1)
        raise AssertionError("the outer loop did not stop")
    assert capsys.readouterr().err.startswith("\nstopping")


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_outside_a_loop_stops_at_once(number: int, code: int) -> None:
    run = make_run(listening=False)
    with pytest.raises(SystemExit) as exit_info, exit_on_signal(run):
        signal.raise_signal(number)
        raise AssertionError("the signal did not stop the run")
    assert exit_info.value.code == code
    assert run.stop.requested == number


@pytest.mark.parametrize("error_class", [RuntimeError, ValueError, UserError])
def test_an_error_after_a_signal_counts_as_a_stop(error_class: type[Exception]) -> None:
    with pytest.raises(SystemExit) as exit_info, exit_on_signal(make_run(listening=True)):
        signal.raise_signal(signal.SIGINT)
        raise error_class("a library was interrupted")
    assert exit_info.value.code == 130
    with pytest.raises(error_class), exit_on_signal(make_run(listening=True)):
        raise error_class("no signal was received")


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_command_that_reads_data_stops_and_removes_temporary_files(
    number: int,
    code: int,
    replaced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check_dataset(name: str, **_: object) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                if replaced:  # a library catches the interrupt and raises an error of another type
                    raise RecursionError from None
                raise

    monkeypatch.setattr("condenset.data.check_dataset", check_dataset)
    with pytest.raises(SystemExit) as exit_info:
        main(["data", "check", "digits"])
    assert exit_info.value.code == code
    assert capsys.readouterr().err == "stopped\n"
    assert not list(tmp_path.iterdir())


def test_a_command_leaves_an_ignored_signal_ignored() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exit_on_signal():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_no_handlers_are_installed_in_a_thread() -> None:
    handlers: list[object] = []

    def read_handlers() -> None:
        with exit_on_signal(make_run(listening=True)):
            handlers.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=read_handlers)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(number) for number in SIGNALS]


def test_signals_after_the_announced_stop_are_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    @contextlib.contextmanager
    def interrupted_cleanup() -> Iterator[None]:
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit) as exit_info, exit_on_signal(), interrupted_cleanup():  # noqa: SIM117
        with exit_on_signal(make_run(listening=False), "Resume with: x"):
            signal.raise_signal(signal.SIGTERM)
    assert exit_info.value.code == 143
    assert capsys.readouterr().err == "stopped. Resume with: x\n"


def test_the_process_ignores_ctrl_c_while_it_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_at_once() -> None:
        raise SystemExit(130)

    monkeypatch.setattr("condenset.cli.main", exit_at_once)
    with pytest.raises(SystemExit):
        run_process()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize("kind", ["recipe", "experiment", "evaluation"])
def test_a_resumed_run_that_is_stopped_while_loading_prints_its_command(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        signal.raise_signal(signal.SIGINT)

    for name in ("pipeline.run.resume_run", "experiments.start.resume_experiment"):
        monkeypatch.setattr(f"condenset.{name}", stop)
    monkeypatch.setattr("condenset.pipeline.evaluation.run.resume_evaluation", stop)
    monkeypatch.chdir(tmp_path)
    Path("k 1").mkdir()
    Path("k 1", f"{kind}.toml").write_text(CONFIG_MARK)
    with pytest.raises(SystemExit) as exit_info:
        main(["resume", "k 1", "--dataset", "new", "--data-dir", "d", "--memory", "4GiB"])
    assert exit_info.value.code == 130
    hint = "Resume with: condenset resume 'k 1' --memory 4GiB --dataset new --data-dir d"
    assert capsys.readouterr().err == f"stopped. {hint}\n"
