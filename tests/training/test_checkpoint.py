"""Checkpoints of networks in training: which are resumed, and which begin again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.io.files import read_tensors, write_tensors
from condenset.io.progress import NullProgress
from condenset.methods import make_recipe
from condenset.pipeline.condensing import load_or_condense
from condenset.runs import checkpoint as run_checkpoint
from condenset.runs import loop
from condenset.runs.checkpoint import CheckpointTimer
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY, open_directory
from condenset.runs.loop import Interrupted
from condenset.training import checkpoint, evaluation
from condenset.training.checkpoint import TrainingCheckpoint
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from condenset.training.trainer import Trainer
from helpers.interrupted_scoring import (
    BATCH_NORM,
    CPU,
    DATA,
    NUM_STEPS,
    OTHER_DATA,
    TEST,
    TrainingRecorder,
    make_protocol,
    make_run,
    read_info,
    score_until,
    states_equal,
)
from helpers.interruption import StopAtStep


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> TrainingRecorder:
    return TrainingRecorder(monkeypatch)


@pytest.mark.parametrize("step", [1, 4, 6, 8])  # epochs end at 3 and 6, and the learning rate falls after 6
@pytest.mark.parametrize("num_parallel", [1, 2])
def test_resumed_networks_have_the_same_state_and_repeat_no_step(
    num_parallel: int, step: int, recorder: TrainingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "num_parallel", lambda *_: num_parallel)
    expected = score_set(DATA, TEST, make_protocol(), make_run(None))
    num_steps, expected_states = recorder.pop()
    assert num_steps == 3 * NUM_STEPS
    score_until(tmp_path, num_parallel * step)
    assert read_info(tmp_path)["step"] == step
    num_before, _ = recorder.pop()
    assert num_before == num_parallel * step
    assert score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies == expected.accuracies
    num_after, states = recorder.pop()
    assert num_after == 3 * NUM_STEPS - num_before
    assert states_equal(states, expected_states)
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_repeated_stops_in_several_networks(recorder: TrainingRecorder, tmp_path: Path) -> None:
    expected = score_set(DATA, TEST, make_protocol(), make_run(None))
    _, expected_states = recorder.pop()
    for step in (2, 5, NUM_STEPS + 3, 2 * NUM_STEPS + 1, 2 * NUM_STEPS + 8):
        score_until(tmp_path, step)
    assert score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies == expected.accuracies
    num_steps, states = recorder.pop()
    assert num_steps == 3 * NUM_STEPS
    assert states_equal(states, expected_states)


def test_groups_are_the_same_after_a_stop(
    recorder: TrainingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven networks are divided into 3, 3 and 1. The last four are not divided again into 2 and 2."""
    monkeypatch.setattr(evaluation, "num_parallel", lambda *_: 3)
    for step in (5, 3 * NUM_STEPS + 12):
        score_until(tmp_path, step, num_networks=7)
    score_set(DATA, TEST, make_protocol(num_networks=7), make_run(tmp_path))
    assert recorder.pop()[0] == 7 * NUM_STEPS


def test_seconds_before_a_stop_count_once(tmp_path: Path) -> None:
    score_until(tmp_path, 4)
    tensors, info = read_tensors(tmp_path / "checkpoint")[0], read_info(tmp_path) | {"seconds": 100.0}
    write_tensors(tmp_path / "checkpoint", tensors, {"checkpoint": json.dumps(info)})
    run = make_run(tmp_path, previous_seconds=1000.0)  # of the set, which was resumed as well
    assert 100 <= score_set(DATA, TEST, make_protocol(), run).seconds < 200
    seconds = [event["seconds"] for event in run.read_events("network")]
    assert 100 <= seconds[0] < 200
    assert max(seconds[1:]) < 100
    assert 100 <= score_set(DATA, TEST, make_protocol(), run).seconds < 200  # read from the events


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"train_set": OTHER_DATA}, {}),
        ({"test_set": OTHER_DATA}, {}),
        ({"seed": 1}, {}),
        ({"job": "random-1"}, {}),
        ({"compute": ComputeDevice.select("cpu", "bfloat16")}, {}),
        ({}, {"lr": 0.05}),
        ({}, {"epochs": 1}),
        ({}, {"network": "mlp(width=8)"}),
    ],
    ids=["train_set", "test_set", "seed", "job", "precision", "lr", "epochs", "network"],
)
def test_other_networks_begin_again(
    changes: dict[str, Any], fields: dict[str, Any], recorder: TrainingRecorder, tmp_path: Path
) -> None:
    def score(directory: Path | None) -> cs.Scores:
        run_fields = {key: value for key, value in changes.items() if key not in ("train_set", "test_set")}
        run = make_run(directory, **run_fields)
        return score_set(changes.get("train_set", DATA), changes.get("test_set", TEST), make_protocol(**fields), run)

    expected = score(None)
    expected_steps, expected_states = recorder.pop()
    score_until(tmp_path, 4)
    recorder.pop()
    assert score(tmp_path).accuracies == expected.accuracies
    num_steps, states = recorder.pop()
    assert num_steps == expected_steps
    assert states_equal(states, expected_states)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_other_groups_begin_again(
    before: int, after: int, recorder: TrainingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = score_set(DATA, TEST, make_protocol(), make_run(None)).accuracies
    monkeypatch.setattr(evaluation, "num_parallel", lambda *_: before)
    score_until(tmp_path, 4)
    recorder.pop()
    monkeypatch.setattr(evaluation, "num_parallel", lambda *_: after)
    assert score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies == expected
    assert recorder.pop()[0] == 3 * NUM_STEPS


def test_more_networks_after_a_stop(recorder: TrainingRecorder, tmp_path: Path) -> None:
    score_until(tmp_path, 4, num_networks=1)
    recorder.pop()
    score_set(DATA, TEST, make_protocol(num_networks=2), make_run(tmp_path))
    assert recorder.pop()[0] == 2 * NUM_STEPS - 4


def test_set_and_networks_of_one_job_do_not_load_the_checkpoint_of_the_other(
    recorder: TrainingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe("dm", ipc=1, name="tiny", size=8, network=BATCH_NORM, iterations=3, batch_size=4)
    path, job = tmp_path / "condensed.safetensors", "dm-1"
    with monkeypatch.context() as patch:  # as if the process was killed after the set was saved
        patch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(loop, "SYNC_SECONDS", 0.0)
        patch.setattr(RunContext, "delete_checkpoint", lambda self: None)
        condensed = load_or_condense(path, "dm", recipe, DATA, make_run(tmp_path, job=job))
    assert read_info(tmp_path)["job"] == job
    expected = score_set(condensed, TEST, make_protocol(), make_run(None)).accuracies
    expected_steps, _ = recorder.pop()
    run = make_run(tmp_path, job=job)
    run.progress = StopAtStep(run, 2)
    with pytest.raises(Interrupted):
        score_set(condensed, TEST, make_protocol(), run)
    assert read_info(tmp_path)["job"].startswith("dm-1: evaluation ")
    path.unlink()
    again = load_or_condense(path, "dm", recipe, DATA, make_run(tmp_path, job=job))
    assert torch.equal(again.images, condensed.images)
    assert not (tmp_path / "checkpoint").exists()
    recorder.pop()
    assert score_set(again, TEST, make_protocol(), make_run(tmp_path, job=job)).accuracies == expected
    assert recorder.pop()[0] == expected_steps


def test_checkpoint_of_another_job_stays_if_all_networks_are_trained(tmp_path: Path) -> None:
    """If results.json is deleted, finished jobs are repeated before the one that the checkpoint belongs to."""
    expected = score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies
    make_run(tmp_path, job="dm-10").save_checkpoint(1, 1.0, {"images": torch.zeros(3)}, force=True)
    content = (tmp_path / "checkpoint").read_bytes()
    assert score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies == expected
    assert (tmp_path / "checkpoint").read_bytes() == content


class CheckpointWatcher(NullProgress):
    """Record at every update whether there is a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.exists = directory, list[bool]()

    def update(self, done: float, note: str = "") -> None:
        self.exists.append((self.directory / "checkpoint").exists())


@pytest.mark.parametrize("due", [False, True])
def test_short_trainings_write_no_checkpoint(due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if due:
        monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)
    watcher = CheckpointWatcher(tmp_path)
    timer = CheckpointTimer(last_save=-1e9)  # the time of earlier work does not count
    score_set(DATA, TEST, make_protocol(num_networks=1), make_run(tmp_path, progress=watcher, checkpoint_timer=timer))
    assert watcher.exists[: NUM_STEPS - 1] == [False, *[due] * (NUM_STEPS - 2)]
    assert not (tmp_path / "checkpoint").exists()


def test_evaluation_continues_if_checkpoints_cannot_be_written(
    recorder: TrainingRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_checkpoint, "write_tensors", fail)
    with pytest.warns(UserWarning, match="No space left on device: networks in training are lost") as warnings:
        accuracies = score_set(DATA, TEST, make_protocol(num_networks=1), make_run(tmp_path)).accuracies
    assert len(warnings) == 1 and recorder.pop()[0] == NUM_STEPS
    assert accuracies == score_set(DATA, TEST, make_protocol(num_networks=1), make_run(None)).accuracies
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 1000.0)
    run = make_run(tmp_path / "stopped")
    (tmp_path / "stopped").mkdir()
    run.progress = StopAtStep(run, 4)
    with pytest.raises(cs.UserError, match="No space left on device"):  # a stop request must not lose work silently
        score_set(DATA, TEST, make_protocol(), run)


@pytest.mark.parametrize("damage", ["nan", "dtype", "seconds", "step"])
def test_damaged_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    score_until(tmp_path, 4)
    tensors, info = read_tensors(tmp_path / "checkpoint")[0], read_info(tmp_path)
    match damage:
        case "nan":
            tensors["0.weights"][3] = torch.nan
        case "dtype":
            tensors["0.order"] = tensors["0.order"].float()
        case "seconds":
            info["seconds"] = -1.0
        case "step":
            info["step"] = NUM_STEPS + 1
    write_tensors(tmp_path / "checkpoint", tensors, {"checkpoint": json.dumps(info)})
    with pytest.raises(cs.UserError, match="delete it to restart this job"):
        score_set(DATA, TEST, make_protocol(), make_run(tmp_path))
    (tmp_path / "checkpoint").write_bytes(b"garbage")
    with pytest.raises(cs.UserError, match="delete it to restart this job"):
        score_set(DATA, TEST, make_protocol(), make_run(tmp_path))


def test_stop_without_directory_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(None)
    run.progress = StopAtStep(run, 4)
    with pytest.raises(Interrupted):
        score_set(DATA, TEST, make_protocol(), run)
    assert not list(tmp_path.iterdir())


def test_trainings_with_learned_steps_have_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)
    fields: dict[str, Any] = {"network": "mlp(width=8)", "iterations": 1, "steps": 2, "epochs": 2, "batch_size": 4}
    condensed = cs.condense(DATA, "dd", ipc=1, device="cpu", **fields)
    watcher = CheckpointWatcher(tmp_path)
    protocol = Protocol(network="mlp(width=8)", num_networks=2, learned_steps=True)
    score_set(condensed, TEST, protocol, make_run(tmp_path, progress=watcher))
    assert watcher.exists and not any(watcher.exists)


def test_user_networks_have_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)

    def linear(channels: int, size: int, num_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size**2, num_classes))

    watcher = CheckpointWatcher(tmp_path)
    score_set(DATA, TEST, make_protocol(network=linear), make_run(tmp_path, progress=watcher))
    assert watcher.exists and not any(watcher.exists)


def test_checkpoint_of_diverged_networks_is_the_last_finite_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)
    diverging = {"lr": 1e6, "epochs": 20, "num_networks": 1, "network": "convnet(width=8, depth=2)"}
    score_until(tmp_path, 60, **diverging)
    tensors, _ = read_tensors(tmp_path / "checkpoint")
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    assert 0 < read_info(tmp_path)["step"] < 60
    for directory in (tmp_path, tmp_path / "undisturbed"):
        directory.mkdir(exist_ok=True)
        with pytest.warns(UserWarning, match="1 of 1 networks diverged"):
            score_set(DATA, TEST, make_protocol(**diverging), make_run(directory))
        assert not (directory / "checkpoint").exists()


def test_gpu_is_synchronised_before_networks_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    all_finite = checkpoint.all_finite
    monkeypatch.setattr(torch.cuda, "synchronize", calls.append)
    monkeypatch.setattr(checkpoint, "all_finite", lambda state: (calls.append("check"), all_finite(state))[1])
    protocol = make_protocol()
    trainer = Trainer(protocol.network, DeviceDataset.from_data(DATA, CPU.device), protocol, CPU)
    gpu = dataclasses.replace(CPU, device=torch.device("cuda"))
    training_checkpoint = TrainingCheckpoint(make_run(tmp_path, compute=gpu), [trainer], job="job")
    training_checkpoint.save_if_due(1)
    assert calls == []  # no checkpoint is due
    training_checkpoint.run.stop.requested = 2
    with pytest.raises(Interrupted):
        training_checkpoint.save_if_due(2)
    assert calls == [gpu.device, "check"]
    assert read_info(tmp_path)["step"] == 2


def test_stop_in_a_slow_test_resumes_with_the_trained_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = score_set(DATA, TEST, make_protocol(), make_run(None)).accuracies
    monkeypatch.setattr("condenset.training.evaluation.SLOW_TEST_SECONDS", 0.0)
    recorder = TrainingRecorder(monkeypatch)
    score_until(tmp_path, NUM_STEPS)  # the first network is trained, and its test begins
    assert recorder.pop()[0] == NUM_STEPS
    assert read_info(tmp_path)["step"] == NUM_STEPS
    assert score_set(DATA, TEST, make_protocol(), make_run(tmp_path)).accuracies == expected
    assert recorder.pop()[0] == 2 * NUM_STEPS


def test_training_stops_if_its_directory_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checkpoint, "CHECKPOINT_SECONDS", 0.0)
    run, protocol = make_run(tmp_path, identity=open_directory(tmp_path, {})), make_protocol()
    trainer = Trainer(protocol.network, DeviceDataset.from_data(DATA, CPU.device), protocol, CPU)
    (tmp_path / IDENTITY).unlink()
    with pytest.raises(cs.UserError, match="was deleted, or belongs to another run now"):  # not a warning
        TrainingCheckpoint(run, [trainer], job="job").save_if_due(1)
    assert list(tmp_path.iterdir()) == []
