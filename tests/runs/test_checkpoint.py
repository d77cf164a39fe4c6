"""Checkpoints: when they are written, and which are accepted."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from condenset import UserError
from condenset.io.files import write_tensors
from condenset.io.progress import NullProgress
from condenset.runs import checkpoint, loop
from condenset.runs.loop import run_loop
from helpers.command_line import list_files, read_files
from helpers.loops import counting_step, make_run, make_state


@pytest.fixture(autouse=True)
def sync_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)


def test_no_checkpoint_before_it_is_due(tmp_path: Path) -> None:
    state = make_state()
    run_loop(make_run(tmp_path), state, 9, counting_step(state), "")
    assert list_files(tmp_path) == ["events.jsonl"]


@pytest.mark.parametrize("write_seconds", [0.1, 1.0, 3.0, 18.0])
def test_checkpoints_take_at_most_one_percent_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_seconds: float
) -> None:
    now, write_times = 0.0, list[float]()

    def write(*_: object) -> None:
        nonlocal now
        write_times.append(now)
        now += write_seconds

    monkeypatch.setattr(checkpoint, "write_tensors", write)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    run, state = make_run(tmp_path), make_state()
    for step in range(10_000):
        now += 1.0
        run.save_checkpoint(step, 0.0, state)
    assert 30.0 <= write_times[0] <= 31.0
    for first, second in itertools.pairwise(write_times):
        assert max(30.0, 100 * write_seconds) <= second - first <= max(31.0, 101 * write_seconds) + 1.0


def test_time_to_send_a_checkpoint_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, num_sent = 0.0, 0

    class SlowConnection(NullProgress):
        def send_files(self) -> None:
            nonlocal now, num_sent
            now, num_sent = now + 3.0, num_sent + 1

    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    run, state = make_run(tmp_path), make_state()
    run.progress = SlowConnection()
    for step in range(1000):
        now += 1.0
        run.save_checkpoint(step, 0.0, state)
    assert num_sent == 4, "after 30 seconds, then every 300"


def test_very_slow_checkpoints_are_written_every_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def write(*_: object) -> None:
        nonlocal now
        now += 103.0

    monkeypatch.setattr(checkpoint, "write_tensors", write)
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    run = make_run(tmp_path)
    now = 30.0
    run.save_checkpoint(1, 0.0, make_state())
    for start, is_due in ((133.0, False), (3732.0, False), (3733.0, True)):
        now = start
        assert run.checkpoint_due() == is_due


def test_checkpoint_of_another_job_is_ignored(tmp_path: Path) -> None:
    make_run(tmp_path, job="dm-10").save_checkpoint(3, 1.0, make_state(), force=True)
    state = make_state()
    with pytest.raises(UserError, match="There is no checkpoint yet"):
        run_loop(make_run(tmp_path), state, 9, counting_step(state, lambda i: state["losses"].fill_(torch.nan)), "")
    run = make_run(tmp_path)
    assert run.load_checkpoint(make_state(), 9) == 0
    assert run.previous_seconds == 0
    assert run.checkpoint_recipe() is None
    assert make_run(tmp_path, job="dm-10").checkpoint_recipe() == {"lr": 1.0}


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"recipe": {"lr": 2.0}}, "it differs in lr"),
        ({"recipe": {"lr": 1.0, "batch_size": 3}}, "it differs in batch_size"),
        ({"seed": 1}, "it differs in seed"),
    ],
)
def test_checkpoint_of_another_recipe_is_refused(tmp_path: Path, fields: dict[str, object], difference: str) -> None:
    make_run(tmp_path).save_checkpoint(3, 1.0, make_state(), force=True)
    with pytest.raises(UserError, match=f"belongs to another recipe .{difference}"):
        make_run(tmp_path, **fields).load_checkpoint(make_state(), 9)


@pytest.mark.parametrize(
    "metadata",
    [
        "{",
        "[]",
        "[" * 100_000,
        "{}",
        json.dumps({"job": "dm-1", "recipe": 3, "seed": 0, "step": 1, "seconds": 1}),
        json.dumps({"job": "dm-1", "recipe": {"lr": 1.0}, "seed": 0, "step": "x", "seconds": 1}),
    ],
    ids=range(6),
)
def test_invalid_metadata_is_refused(tmp_path: Path, metadata: str) -> None:
    write_tensors(tmp_path / "checkpoint", make_state(), {"checkpoint": metadata})
    with pytest.raises(UserError, match="is not a checkpoint; delete it to restart this job"):
        make_run(tmp_path).load_checkpoint(make_state(), 9)
    assert make_run(tmp_path).checkpoint_recipe() is None


def test_other_tensors_and_invalid_steps_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.save_checkpoint(3, 1.0, {**make_state(), "images": torch.zeros(3)}, force=True)
    with pytest.raises(UserError, match="contains other tensors than this job needs"):
        run.load_checkpoint(make_state(), 9)
    for step in (10, -1):
        run.save_checkpoint(step, 1.0, make_state(), force=True)
        state = make_state()
        with pytest.raises(UserError, match=f"must be at an iteration from 0 to 9, but got iteration {step}"):
            run_loop(run, state, 9, counting_step(state), "")


def damage_byte(path: Path, position: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(position * len(content))] ^= 1
    path.write_bytes(bytes(content))


def save_two_checkpoints(directory: Path) -> Path:
    """Save the states after 3 and after 5 iterations, and return the file of the second."""
    state = make_state()
    for step in (3, 5):
        state["images"].fill_(step)
        make_run(directory).save_checkpoint(step, 1.0, state, force=True)
    return directory / "checkpoint"


@pytest.mark.parametrize("position", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_the_previous_checkpoint_replaces_a_damaged_one(tmp_path: Path, position: float) -> None:
    damage_byte(save_two_checkpoints(tmp_path), position)
    assert make_run(tmp_path).checkpoint_recipe() == {"lr": 1.0}
    state = make_state()
    with pytest.warns(UserWarning, match=r"checkpoint is damaged: .* continues from the checkpoint before it .step 3"):
        assert make_run(tmp_path).load_checkpoint(state, 9) == 3
    assert state["images"].tolist() == [3, 3]
    assert list_files(tmp_path) == ["checkpoint"]  # the damaged one never becomes the previous one
    assert make_run(tmp_path).load_checkpoint(make_state(), 9) == 3


def test_damaged_checkpoints_without_a_previous_one_are_refused(tmp_path: Path) -> None:
    path = save_two_checkpoints(tmp_path)
    damage_byte(path, 0.99)
    damage_byte(checkpoint.previous_path(path), 0.99)
    before = read_files(tmp_path)
    with pytest.raises(UserError, match="is damaged: its content does not match its checksum; delete it to restart"):
        make_run(tmp_path).load_checkpoint(make_state(), 9)
    assert make_run(tmp_path).checkpoint_recipe() is None
    make_run(tmp_path, job="dm-10").save_checkpoint(3, 1.0, make_state(), force=True)
    make_run(tmp_path).save_checkpoint(3, 1.0, make_state(), force=True)
    damage_byte(path, 0.99)
    with pytest.raises(UserError, match="is damaged"):  # the previous one belongs to another job
        make_run(tmp_path).load_checkpoint(make_state(), 9)
    assert list_files(tmp_path) == list(before)


def test_a_kill_between_two_checkpoints_leaves_the_previous_one(tmp_path: Path) -> None:
    save_two_checkpoints(tmp_path).unlink()
    run = make_run(tmp_path)
    assert run.load_checkpoint(make_state(), 9) == 3
    run.delete_checkpoint()
    assert list_files(tmp_path) == []


def test_checkpoint_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*checkpoint: Not a directory"):
        make_run(tmp_path / "file" / "run").save_checkpoint(1, 1.0, make_state(), force=True)
