"""The option `--tensorboard`: curves that TensorBoard reads, without repeated steps after a resume."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

from condenset.engine.device import ComputeDevice
from condenset.errors import UserError
from condenset.runs import checkpoint, loop
from condenset.runs.context import RunContext
from condenset.runs.tensorboard import CurveWriter, record_curves
from helpers.command_line import TINY, TINY_NETWORK, CommandRunner
from helpers.disk import limited_file_size

CONDENSE = ("condense", "toy.npz", "--ipc", 1, *TINY_NETWORK, "--iterations", 8, "--tensorboard", "--out")


def read_curves(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each curve, as they are in the files."""
    stored = EventAccumulator(str(directory / "tensorboard"), size_guidance={SCALARS: 0}, purge_orphaned_data=False)
    stored.Reload()
    return {tag: [(event.step, event.value) for event in stored.Scalars(tag)] for tag in stored.Tags()[SCALARS]}


@pytest.fixture(autouse=True)
def sync_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)


def test_curves_of_a_run(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("run", toy, "--ipc", 1, *TINY, "--tensorboard", "--out", "a").code == 0
    curves = read_curves(Path("a"))
    assert curves.keys() == {
        *("loss/dm-1", "condense_seconds/dm-1"),
        *(f"{name}/{job}" for name in ("accuracy", "evaluate_seconds") for job in ("random-1", "dm-1")),
    }
    events = [json.loads(line) for line in Path("a/events.jsonl").read_text().splitlines()]
    losses = [(event["step"], event["loss"]) for event in events if event["event"] == "step"]
    assert [step for step, _ in curves["loss/dm-1"]] == [step for step, _ in losses] == [1, 2, 3, 4, 5]
    assert [value for _, value in curves["loss/dm-1"]] == pytest.approx([loss for _, loss in losses])
    accuracies = {record["method"]: record["accuracies"] for record in json.loads(Path("a/results.json").read_text())}
    assert [value for _, value in curves["accuracy/dm-1"]] == pytest.approx(accuracies["dm"])
    assert condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a", "--overwrite").code == 0
    assert not Path("a/tensorboard").exists()


def test_resumed_curves_have_no_repeated_steps(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert condenset(*CONDENSE, "expected").code == 0
    real = checkpoint.write_tensors

    def save_until_step_three(path: Path, tensors: Any, metadata: Any) -> None:
        step = json.loads(metadata["checkpoint"])["step"]
        if step == 6:
            raise OSError(28, "No space left on device")
        if step <= 3:
            real(path, tensors, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(checkpoint, "write_tensors", save_until_step_three)
        assert "No space left on device" in condenset(*CONDENSE, "a").error_line
    assert [step for step, _ in read_curves(Path("a"))["loss/dm-1"]] == [1, 2, 3, 4, 5, 6]
    assert condenset("resume", "a").code == 0
    events = [json.loads(line) for line in Path("a/events.jsonl").read_text().splitlines()]
    assert len([event for event in events if event["event"] == "step"]) > 8  # some steps were repeated
    assert read_curves(Path("a"))["loss/dm-1"] == read_curves(Path("expected"))["loss/dm-1"]


def test_curves_of_an_experiment(condenset: CommandRunner, fast_tiny: None) -> None:
    options = ("--scale", "tiny", "--methods", "dm", "--ipc", 1, "--tensorboard", "--out", "a")
    assert condenset("paper", "sota", *options).code == 0
    assert {"loss/dm-1", "accuracy/dm-1", "accuracy/whole"} <= read_curves(Path("a")).keys()


def test_missing_package_is_one_line(condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find_spec(name))
    error_line = condenset(*CONDENSE, "a").error_line
    assert (
        error_line
        == "--tensorboard needs the package tensorboard: install it with: pip install 'condenset[tensorboard]'"
    )
    assert not Path("a").exists()


def test_curves_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("")
    run = RunContext(directory=tmp_path, compute=ComputeDevice.select("cpu"))
    with (
        pytest.raises(UserError, match="tensorboard: File exists"),
        record_curves(run, requested=True),
    ):
        pass


def test_run_continues_without_curves_if_the_package_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "tensorboard").mkdir()
    run = RunContext(directory=tmp_path, compute=ComputeDevice.select("cpu"))
    with pytest.warns(UserWarning, match="the curves do not continue"), record_curves(run, requested=False):
        assert run.on_event is None


def test_full_disk_ends_the_curves_with_a_warning(tmp_path: Path) -> None:
    num_threads, writer = threading.active_count(), CurveWriter(tmp_path)
    with limited_file_size(200), pytest.warns(UserWarning, match="the curves for TensorBoard end here"):
        for step in range(100):
            writer.write_event({"event": "step", "job": "dm-1", "step": step, "loss": 1.0, "seconds": 1.0})
    writer.close()
    assert threading.active_count() == num_threads


def test_networks_may_finish_in_any_order(tmp_path: Path) -> None:
    events = [
        {"event": "network", "job": "dm, 1", "net": net, "accuracy": net / 10, "seconds": 2} for net in (2, 0, 1, 0)
    ]
    others = [{"event": "network", "job": "dm, 1", "net": 5, "seconds": 3}, {"event": "task", "job": "dm, 1"}]
    for _ in range(2):  # the second writer continues
        writer = CurveWriter(tmp_path / "tensorboard")
        for event in (*others, *events):
            writer.write_event(event)
        writer.close()
    curves = read_curves(tmp_path)
    assert [step for step, _ in curves["accuracy/dm__1"]] == [2, 0, 1]
    assert [step for step, _ in curves["evaluate_seconds/dm__1"]] == [2, 0, 1]
