"""Stopped in any way and at any moment, a run goes on to bitwise the same result."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from shell import TINY, TINY_NETWORK, Command, DieAtRename, names, same_set, write_npz
from torch import Tensor

from condenset import CondensedSet, estimates
from condenset.cli import main
from condenset.files import read_tensors
from condenset.train import Trainer

SLOW = (*TINY_NETWORK, "--iterations", "250", "--nets", "8", "--epochs", "60", "--no-whole", "--method", "dm")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stops")
    write_npz(folder / "toy.npz")
    return folder


@pytest.fixture(scope="module")
def undisturbed(home: Path) -> Path:
    """A run that nothing happened to."""
    assert Command(("run", home / "toy.npz", "--ipc", 2, *SLOW, "--out", home / "whole"), home).wait().code == 0
    return home / "whole"


def command(home: Path, folder: Path, prepare: Callable[[], None] | None = None) -> Command:
    """Begin the run, or resume it."""
    if (folder / "recipe.toml").exists():
        return Command(("resume", folder), home, prepare)
    return Command(("run", home / "toy.npz", "--ipc", 2, *SLOW, "--out", folder), home, prepare)


def accuracies(folder: Path) -> list[list[float]]:
    return [record["accuracies"] for record in json.loads((folder / "results.json").read_text())]


def assert_same(folder: Path, undisturbed: Path) -> None:
    assert same_set(folder / "condensed.safetensors", undisturbed / "condensed.safetensors")
    assert accuracies(folder) == accuracies(undisturbed)
    assert names(folder) == names(undisturbed)  # and no leftovers


def has_event(folder: Path, kind: str, number: int = 1) -> bool:
    path = folder / "events.jsonl"
    return path.exists() and path.read_text().count(f'"event": "{kind}"') >= number


def whole_files(folder: Path) -> None:
    """Whatever has its final name is whole."""
    for path in folder.rglob("*"):
        if path.name.startswith(".") or path.is_dir():
            continue
        if path.suffix == ".safetensors":
            CondensedSet.load(path)
        elif path.name == "checkpoint":
            assert all(tensor.isfinite().all() for tensor in read_tensors(path)[0].values())
        elif path.suffix == ".json":
            json.loads(path.read_text())


def test_killed_at_random_moments_while_condensing(home: Path, undisturbed: Path) -> None:
    folder, delays, kills = home / "condensing", random.Random(1), 0
    while kills < 4 and not (folder / "condensed.safetensors").exists():
        running = command(home, folder)
        seen = (folder / "events.jsonl").read_text().count("\n") if (folder / "events.jsonl").exists() else 0
        running.wait_for(lambda seen=seen: has_event(folder, "step", seen + 1))
        time.sleep(delays.uniform(0, 0.1))
        running.send(signal.SIGKILL)
        assert running.wait().code == -signal.SIGKILL
        kills += not (folder / "condensed.safetensors").exists()
        whole_files(folder)
    assert kills >= 2
    assert command(home, folder).wait().code == 0
    assert_same(folder, undisturbed)


def test_killed_at_random_moments_while_evaluating(home: Path, undisturbed: Path) -> None:
    folder, delays, kills = home / "evaluating", random.Random(2), 0
    while kills < 3 and not (folder / "results.json").exists():
        running = command(home, folder)
        running.wait_for(lambda kills=kills: has_event(folder, "network", 2 * kills + 1))
        time.sleep(delays.uniform(0, 0.05))
        running.send(signal.SIGKILL)
        assert running.wait().code == -signal.SIGKILL
        kills += not (folder / "results.json").exists()
        whole_files(folder)
    assert kills >= 2
    assert command(home, folder).wait().code == 0
    assert_same(folder, undisturbed)


@dataclass(frozen=True)
class NoteSteps:
    """A dot in a file for every step of a network."""

    path: Path

    def __call__(self) -> None:
        step = Trainer._step

        def noted(trainer: Trainer, ahead: Tensor) -> None:
            step(trainer, ahead)
            with self.path.open("a") as file:
                file.write(".")

        Trainer._step = noted  # type: ignore[method-assign]
        estimates.SOON = sys.maxsize  # none is tried out before


def test_killed_while_a_network_learns_the_whole_dataset_it_goes_on_midway(home: Path, tmp_path: Path) -> None:
    steps, dots = 401, (tmp_path / "dots", tmp_path / "more")  # a pass of one step each
    long = (*TINY_NETWORK, "--nets", 1, "--epochs", 1, "--whole-epochs", steps - 1)
    begin = ("run", home / "toy.npz", "--ipc", 1, "--method", "random", *long, "--out")
    assert Command((*begin, tmp_path / "whole"), tmp_path).wait().code == 0
    folder = tmp_path / "killed"
    running = Command((*begin, folder), tmp_path, NoteSteps(dots[0]))
    running.wait_for(lambda: dots[0].exists() and dots[0].stat().st_size > 50)
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    whole_files(folder)
    left = json.loads(read_tensors(folder / "checkpoint")[1]["checkpoint"])
    assert left["job"].startswith("whole: networks [0] that score ")
    assert 40 < left["step"] < steps
    assert Command(("resume", folder), tmp_path, NoteSteps(dots[1])).wait().code == 0
    assert dots[1].stat().st_size == steps - left["step"]
    assert accuracies(folder) == accuracies(tmp_path / "whole")
    assert names(folder) == names(tmp_path / "whole")


def test_killed_between_a_temporary_file_and_its_rename(home: Path) -> None:
    begin = ("run", home / "toy.npz", "--ipc", 1, *TINY)
    assert Command((*begin, "--out", home / "renames"), home).wait().code == 0
    for number in range(1, 9):  # recipe, set, results, set, results, picture, chart twice
        folder = home / f"rename-{number}"
        assert Command((*begin, "--out", folder), home, DieAtRename(number)).wait().code == -signal.SIGKILL
        assert len([name for name in names(folder) if name.endswith(".tmp")]) == 1
        whole_files(folder)
        again = ("resume", folder) if number > 1 else (*begin, "--out", folder)
        assert Command(again, home).wait().code == 0
        assert_same(folder, home / "renames")
    assert Command((*begin, "--out", home / "last"), home, DieAtRename(9)).wait().code == 0  # there is no ninth


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C interrupts, which it does not in what a script runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_while_it_reads_it_leaves_nothing(
    number: int,
    code: int,
    caught: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def check_files(name: str, **_: object) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                if caught:  # a library's import catches anything, and tries again
                    raise RecursionError from None
                raise

    monkeypatch.setattr("condenset.data.check_files", check_files)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stopped:
        main(["data", "check", "digits"])
    assert stopped.value.code == code
    assert capsys.readouterr().err == "stopped\n"
    assert not list(tmp_path.iterdir())
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_checkpoints_and_says_how_to_go_on(home: Path, undisturbed: Path, number: int, code: int) -> None:
    folder = home / f"signal {code}"
    running = command(home, folder)
    running.wait_for(lambda: has_event(folder, "step"))
    running.send(number)
    result = running.wait()
    assert result.code == code
    assert result.err.splitlines()[-1] == f"stopped; go on with: condenset resume '{folder}'"
    assert result.out == ""
    step = json.loads(read_tensors(folder / "checkpoint")[1]["checkpoint"])["step"]
    assert 0 < step < 250
    running = command(home, folder)
    running.wait_for(lambda: has_event(folder, "network"))
    running.send(number)
    assert running.wait().code == code
    assert not (folder / "results.json").exists()
    assert command(home, folder).wait().code == 0
    assert_same(folder, undisturbed)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "step"] == list(range(1, 251))  # none done twice
    assert [event["net"] for event in events if event["event"] == "network"] == list(range(8))


def test_ctrl_c_in_the_real_command(tmp_path: Path) -> None:
    script = [sys.executable, "-c", "from condenset.cli import main; main()", "run", "digits", "--ipc", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*script, "--method", "dm"], stderr=subprocess.PIPE, text=True, env=environment)
    while not has_event(tmp_path / "runs" / "digits", "step") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-2:] == ["stopping after this step …", "stopped; go on with: condenset resume runs/digits"]
    assert (tmp_path / "runs" / "digits" / "checkpoint").exists()


def test_a_stopped_evaluation_keeps_what_it_has_scored(home: Path, undisturbed: Path) -> None:
    sets = [undisturbed] * 50
    running = Command(("evaluate", *sets, "--nets", 2, "--epochs", 20, "--out", home / "scores.json"), home)
    running.wait_for((home / "scores.json").exists)
    running.send(signal.SIGINT)
    result = running.wait()
    assert result.code == 130
    assert result.err.splitlines()[-1] == "stopped"
    assert 1 <= len(json.loads((home / "scores.json").read_text())) < 50


def test_lines_are_plain_where_there_is_no_terminal(home: Path) -> None:
    result = Command(("run", home / "toy.npz", "--ipc", 1, *TINY, "--out", home / "plain"), home).wait()
    assert result.err.splitlines() == [line for line in result.err.splitlines() if " all goes to " in line]
    assert "\x1b" not in result.out + result.err
    assert result.out.splitlines()[0].split()[0] == "method"


def test_a_terminal_gets_a_bar(home: Path) -> None:
    text = "".join(_seen_by_a_terminal(("run", home / "toy.npz", "--ipc", 1, *SLOW, "--out", home / "bar"), home))
    for part in ("dm, 1 a class", "━", "%", "/s", "loss "):
        assert part in text
    assert "Traceback" not in text
    assert "\x1b" not in (home / "out").read_text()


def _seen_by_a_terminal(arguments: tuple[object, ...], home: Path) -> Iterator[str]:
    ours, theirs = pty.openpty()
    running = Command(arguments, home, stderr=os.ttyname(theirs))
    os.set_blocking(ours, False)
    alive = True
    while alive:
        alive = running.process.is_alive()
        time.sleep(0.01)
        try:
            yield os.read(ours, 1 << 20).decode(errors="replace")
        except BlockingIOError:
            continue
    os.close(ours)
    os.close(theirs)
    assert running.process.exitcode == 0
