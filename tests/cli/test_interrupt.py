"""A run that is stopped or killed at any moment resumes to bitwise the same result."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from condenset import CondensedSet
from condenset.io.files import read_tensors
from helpers.command_line import (
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandProcess,
    CommandRunner,
    CountSteps,
    KillAtRename,
    list_files,
    read_records,
    sets_equal,
    write_npz,
)

ITERATIONS, NUM_NETWORKS = 100, 5
SLOW = (*TINY_NETWORK, "--iterations", ITERATIONS, "--nets", NUM_NETWORKS, "--epochs", 30, "--no-whole")
SLOW = (*SLOW, "--method", "dm")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a dataset, for all tests of this module."""
    directory = tmp_path_factory.mktemp("interrupt")
    write_npz(directory / "toy.npz")
    return directory


@pytest.fixture(scope="module")
def uninterrupted_run(workspace: Path) -> Path:
    """The directory of a run that was not interrupted."""
    directory = workspace / "uninterrupted"
    assert start_or_resume(workspace, directory).wait().code == 0
    return directory


def start_or_resume(workspace: Path, directory: Path) -> CommandProcess:
    """Start the run, or resume it if it has started."""
    if (directory / "recipe.toml").exists():
        return CommandProcess(("resume", directory), workspace)
    return CommandProcess(("run", workspace / "toy.npz", "--ipc", 2, *SLOW, "--out", directory), workspace)


def read_accuracies(directory: Path) -> list[list[float]]:
    return [record["accuracies"] for record in read_records(directory)]


def assert_runs_equal(directory: Path, other: Path) -> None:
    """Check that two runs have the same sets, accuracies and files, without leftovers."""
    assert list_files(directory) == list_files(other)
    for path in (other / "sets").iterdir():
        assert sets_equal(directory / "sets" / path.name, path)
    assert read_accuracies(directory) == read_accuracies(other)


def count_events(directory: Path, kind: str) -> int:
    path = directory / "events.jsonl"
    return path.read_text().count(f'"event": "{kind}"') if path.exists() else 0


def assert_files_complete(directory: Path) -> None:
    """Check that every file with its final name can be read."""
    for path in directory.rglob("*"):
        if path.name.startswith(".") or path.is_dir():
            continue
        if path.suffix == ".safetensors":
            CondensedSet.load(path)
        elif path.name == "checkpoint":
            assert all(tensor.isfinite().all() for tensor in read_tensors(path)[0].values())
        elif path.suffix == ".json":
            json.loads(path.read_text())


def read_checkpoint(directory: Path) -> dict[str, Any]:
    """Return the metadata of the last checkpoint of a run; a kill while it was written leaves the one before."""
    path = directory / "checkpoint"
    path = path if path.exists() else directory / "checkpoint.previous"
    metadata: dict[str, Any] = json.loads(read_tensors(path)[1]["checkpoint"])
    return metadata


def test_a_run_killed_while_condensing_resumes(workspace: Path, uninterrupted_run: Path) -> None:
    directory = workspace / "condensing"
    kill_repeatedly(workspace, directory, "step", 3, directory / "sets" / "dm-2.safetensors")
    assert start_or_resume(workspace, directory).wait().code == 0
    assert_runs_equal(directory, uninterrupted_run)


def test_a_run_killed_while_evaluating_resumes(workspace: Path, uninterrupted_run: Path) -> None:
    directory = workspace / "evaluating"
    kill_repeatedly(workspace, directory, "network", 2, directory / "results.json")
    assert start_or_resume(workspace, directory).wait().code == 0
    assert_runs_equal(directory, uninterrupted_run)


def kill_repeatedly(workspace: Path, directory: Path, event: str, max_kills: int, final_file: Path) -> None:
    """Kill a run two or more times at random moments soon after an event, before its final file exists."""
    delays, num_kills = random.Random(1), 0
    while num_kills < max_kills and not final_file.exists():
        process = start_or_resume(workspace, directory)
        target = count_events(directory, event) + 1 if event == "step" else 2 * num_kills + 1
        process.wait_until(lambda target=target: count_events(directory, event) >= target)
        time.sleep(delays.uniform(0, 0.1 if event == "step" else 0.05))
        process.send(signal.SIGKILL)
        assert process.wait().code == -signal.SIGKILL
        num_kills += not final_file.exists()
        assert_files_complete(directory)
    assert num_kills >= 2


def test_a_killed_training_on_the_whole_dataset_continues_from_its_checkpoint(workspace: Path, tmp_path: Path) -> None:
    num_steps, first_steps, later_steps = 201, tmp_path / "first", tmp_path / "later"  # one step per epoch
    options = (*TINY_NETWORK, "--nets", 1, "--epochs", 1, "--whole-epochs", num_steps - 1)
    command = ("run", workspace / "toy.npz", "--ipc", 1, "--method", "random", *options, "--out")
    assert CommandProcess((*command, tmp_path / "uninterrupted"), tmp_path).wait().code == 0
    directory = tmp_path / "killed"
    process = CommandProcess((*command, directory), tmp_path, CountSteps(first_steps))
    process.wait_until(lambda: first_steps.exists() and first_steps.stat().st_size > 50)
    process.send(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL
    assert_files_complete(directory)
    checkpoint = read_checkpoint(directory)
    assert checkpoint["job"].startswith("whole: ") and checkpoint["job"].endswith("networks [0]")
    assert 40 < checkpoint["step"] < num_steps
    assert CommandProcess(("resume", directory), tmp_path, CountSteps(later_steps)).wait().code == 0
    assert later_steps.stat().st_size == num_steps - checkpoint["step"]
    assert read_accuracies(directory) == read_accuracies(tmp_path / "uninterrupted")
    assert list_files(directory) == list_files(tmp_path / "uninterrupted")


def test_a_run_killed_before_every_rename_resumes(workspace: Path) -> None:
    """Kill every process before its second rename, so that each file is once the last one that was completed."""
    command = ("run", workspace / "toy.npz", "--ipc", 1, *TINY)
    assert CommandProcess((*command, "--out", workspace / "renames"), workspace).wait().code == 0
    directory = workspace / "killed before renames"
    for number in range(7):  # of 9 files: identity, recipe, set, results, set, results, picture, chart twice
        arguments = ("resume", directory) if number else (*command, "--out", directory)
        assert CommandProcess(arguments, workspace, KillAtRename(2 if number else 3)).wait().code == -signal.SIGKILL
        assert len([name for name in list_files(directory) if name.endswith(".tmp")]) == 1
        assert_files_complete(directory)
    assert CommandProcess(("resume", directory), workspace).wait().code == 0
    assert_runs_equal(directory, workspace / "renames")


def test_a_run_killed_before_its_first_rename_can_be_repeated(workspace: Path, condenset: CommandRunner) -> None:
    command = ("run", workspace / "toy.npz", "--ipc", 1, *TINY, "--out", workspace / "killed at once")
    assert CommandProcess(command, workspace, KillAtRename(1)).wait().code == -signal.SIGKILL
    assert condenset(*command).code == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_a_checkpoint_and_prints_how_to_resume(
    workspace: Path, uninterrupted_run: Path, number: int, code: int
) -> None:
    directory = workspace / f"signal {code}"
    process = start_or_resume(workspace, directory)
    process.wait_until(lambda: count_events(directory, "step") > 0)
    process.send(number)
    result = process.wait()
    assert result.code == code
    assert result.err.splitlines()[-1] == f"stopped. Resume with: condenset resume '{directory}'"
    assert result.out == ""
    assert 0 < read_checkpoint(directory)["step"] < ITERATIONS
    process = start_or_resume(workspace, directory)
    process.wait_until(lambda: count_events(directory, "network") > 0)
    process.send(number)
    assert process.wait().code == code
    assert not (directory / "results.json").exists()
    assert start_or_resume(workspace, directory).wait().code == 0
    assert_runs_equal(directory, uninterrupted_run)
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(1, ITERATIONS + 1))  # none is repeated
    assert [event["net"] for event in events if event["event"] == "network"] == list(range(NUM_NETWORKS))


@pytest.mark.usefixtures("toy")
def test_ctrl_c_stops_a_real_process(tmp_path: Path) -> None:
    script = [sys.executable, "-c", "from condenset.cli import main; main()", "condense", "toy.npz", "--ipc", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*script, *TINY_NETWORK], stderr=subprocess.PIPE, text=True, env=environment)
    while not count_events(tmp_path / "runs" / "toy", "step") and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    hint = "stopped. Resume with: condenset resume runs/toy"
    first_line, counts, device, *lines = err.splitlines()
    assert first_line.startswith("Condensing ") and device.startswith("Device: ")
    assert counts == "36 training images of 1x8x8, 3 classes"
    assert lines == ["", "stopping … (press Ctrl-C again to stop at once)", hint]
    assert (tmp_path / "runs" / "toy" / "checkpoint").exists()


def test_a_stopped_evaluation_prints_its_scores_and_resumes(workspace: Path, uninterrupted_run: Path) -> None:
    networks = ("--network", "convnet(width=8, depth=1),mlp(width=8)")
    options = (*networks, "--nets", NUM_NETWORKS, "--epochs", 40, "--device", "cpu")
    expected, directory = workspace / "all scores", workspace / "scores"
    assert CommandProcess(("evaluate", uninterrupted_run, *options, "--out", expected), workspace).wait().code == 0
    process = CommandProcess(("evaluate", uninterrupted_run, *options, "--out", directory), workspace)
    process.wait_until(lambda: count_events(directory, "network") >= NUM_NETWORKS + 2)
    process.send(signal.SIGINT)
    result = process.wait()
    assert result.code == 130
    assert result.err.splitlines()[-1] == f"stopped. Resume with: condenset resume {directory}"
    header, row = result.out.splitlines()
    assert header.endswith("convnet(width=8, depth=1)  mlp(width=8)")
    assert re.search(
        rf"toy.npz +dm +2 +[0-9.]+ ± [0-9.]+ +[0-9.]+ ± [0-9.]+ \([2-7] of {NUM_NETWORKS} networks\)$", row
    )
    assert len(read_records(directory)) == 1
    resumed = CommandProcess(("resume", directory), workspace).wait()
    assert resumed.code == 0 and f"of {NUM_NETWORKS} networks" not in resumed.out
    assert resumed.err.startswith("Scoring 1 set on ")
    assert read_accuracies(directory) == read_accuracies(expected)
    assert list_files(directory) == list_files(expected)
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert [event["net"] for event in events] == 2 * list(range(NUM_NETWORKS))  # none is repeated
    for name in ("balanced_accuracy", "per_class_accuracy", "confusion"):
        assert [record[name] for record in read_records(directory)] == [
            record[name] for record in read_records(expected)
        ]


def test_without_a_terminal_only_three_lines_are_printed_to_stderr(workspace: Path) -> None:
    command = ("run", workspace / "toy.npz", "--ipc", 1, *TINY, "--out", workspace / "plain")
    result = CommandProcess(command, workspace).wait()
    line, counts, device = result.err.splitlines()
    assert line.startswith("Condensing ") and device.startswith("Device: ")
    assert counts == "36 training and 36 test images of 1x8x8, 3 classes"
    assert "\x1b" not in result.out + result.err
    assert [line.split()[0] for line in result.out.splitlines()[:2]] == ["networks:", "method"]


def test_a_terminal_shows_a_progress_bar(workspace: Path) -> None:
    options = (*TINY_NETWORK, "--iterations", ITERATIONS, *TINY_EVALUATION, "--no-whole", "--method", "dm")
    command = ("run", workspace / "toy.npz", "--ipc", 1, *options, "--out", workspace / "bar")
    text = "".join(_read_terminal(command, workspace))
    for part in ("dm, 1 per class", "━", "%", "/s", "loss "):
        assert part in text
    assert "Traceback" not in text
    assert "\x1b" not in (workspace / "out").read_text()


def _read_terminal(arguments: tuple[object, ...], workspace: Path) -> Iterator[str]:
    """Run a command with a terminal as stderr, and return what the terminal receives."""
    reader, writer = pty.openpty()
    command = CommandProcess(arguments, workspace, stderr=os.ttyname(writer))
    os.set_blocking(reader, False)
    alive = True
    while alive:
        alive = command.process.is_alive()
        time.sleep(0.01)
        try:
            yield os.read(reader, 1 << 20).decode(errors="replace")
        except BlockingIOError:
            continue
    os.close(reader)
    os.close(writer)
    assert command.process.exitcode == 0
