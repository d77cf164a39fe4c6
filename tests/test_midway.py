"""Networks half trained when a scoring was stopped: they go on to the same, and nothing else is taken for them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset import evaluation, midway, runs
from condenset.engine import Place
from condenset.evaluation import score
from condenset.files import read_tensors, write_tensors
from condenset.midway import Midway
from condenset.presets import make_recipe
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run, Silent
from condenset.train import Trainer, TrainingSet
from condenset.workflow import made_set
from plain import StopAtStep, tiny_data

CPU = Place.best("cpu")
DATA, TEST = tiny_data([7, 7, 7]), tiny_data([9, 9, 9], seed=1)
BATCH_NORM = "convnet(width=8, depth=2, norm='batch')"
STEPS = 9  # of a network: three passes of three
SCORE = {"network": BATCH_NORM, "nets": 3, "epochs": 2, "batch": 8}


def protocol(**fields: Any) -> Protocol:
    return Protocol(**{**SCORE, **fields})


def new_run(folder: Path | None, **fields: Any) -> Run:
    return Run(**{"place": CPU, "folder": folder, "job": "whole", **fields})


def stopped(folder: Path, step: int, **fields: Any) -> None:
    """A scoring that is asked to stop when so many steps of all networks are done."""
    run = new_run(folder, recipe={"lr": 1.0})  # of the set that was made before; a resumed run only reads it
    run.progress = StopAtStep(run, step)
    with pytest.raises(Interrupted):
        score(DATA, TEST, protocol(**fields), run)
    assert not run.listening


def meta(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_tensors(folder / "checkpoint")[1]["checkpoint"])
    return found


class Seen:
    """The steps that are trained, and the networks as they are tested."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.networks = 0, list[list[Tensor]]()
        step, accuracy = Trainer._step, Trainer.accuracy

        def noted(trainer: Trainer, ahead: Tensor) -> None:
            self.steps += 1
            step(trainer, ahead)

        def tested(trainer: Trainer, *args: Any) -> float:
            self.networks.append([each.clone() for each in trainer.state.values()])
            return accuracy(trainer, *args)

        monkeypatch.setattr(Trainer, "_step", noted)
        monkeypatch.setattr(Trainer, "accuracy", tested)

    def taken(self) -> tuple[int, list[list[Tensor]]]:
        """What was seen since the last time."""
        found = self.steps, self.networks
        self.steps, self.networks = 0, []
        return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def same(mine: list[list[Tensor]], theirs: list[list[Tensor]]) -> bool:
    pairs = [pair for both in zip(mine, theirs, strict=True) for pair in zip(*both, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("step", [1, 4, 6, 8])  # a pass ends at 6, before which the rate drops
@pytest.mark.parametrize("num", [1, 2])
def test_networks_stopped_midway_go_on_to_the_same(
    num: int, step: int, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "together", lambda *_: num)
    whole = score(DATA, TEST, protocol(), new_run(None))
    steps, networks = seen.taken()
    assert steps == 3 * STEPS
    stopped(tmp_path, num * step)  # of those that train first
    assert meta(tmp_path)["step"] == step
    before = seen.taken()[0]
    assert before == num * step
    again = score(DATA, TEST, protocol(), new_run(tmp_path))
    assert again.accuracies == whole.accuracies
    steps, found = seen.taken()
    assert steps == 3 * STEPS - before  # none is done twice
    assert same(found, networks)
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_stopped_again_and_again_and_in_later_networks(seen: Seen, tmp_path: Path) -> None:
    whole = score(DATA, TEST, protocol(), new_run(None))
    _, networks = seen.taken()
    for step in (2, 5, STEPS + 3, 2 * STEPS + 1, 2 * STEPS + 8):
        stopped(tmp_path, step)
    assert score(DATA, TEST, protocol(), new_run(tmp_path)).accuracies == whole.accuracies
    steps, found = seen.taken()
    assert steps == 3 * STEPS
    assert same(found, networks)


def test_groups_are_cut_alike_after_a_stop(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven, three, three and one; of the four that are left after the first three, not two and two."""
    monkeypatch.setattr(evaluation, "together", lambda *_: 3)
    for step in (5, 3 * STEPS + 12):
        stopped(tmp_path, step, nets=7)
    score(DATA, TEST, protocol(nets=7), new_run(tmp_path))
    assert seen.taken()[0] == 7 * STEPS


def test_seconds_before_a_stop_count_once(tmp_path: Path) -> None:
    stopped(tmp_path, 4)
    tensors, _ = read_tensors(tmp_path / "checkpoint")
    write_tensors(tmp_path / "checkpoint", tensors, {"checkpoint": json.dumps(meta(tmp_path) | {"seconds": 100.0})})
    run = new_run(tmp_path, seconds_before=1000.0)  # of the set, which was resumed too
    assert 100 <= score(DATA, TEST, protocol(), run).seconds < 200
    seconds = [event["seconds"] for event in run.events("network")]
    assert 100 <= seconds[0] < 200
    assert max(seconds[1:]) < 100
    assert 100 <= score(DATA, TEST, protocol(), run).seconds < 200  # read, not trained


ALSO = tiny_data([7, 7, 7], seed=5)


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"small": ALSO}, {}),
        ({"test": ALSO}, {}),
        ({"seed": 1}, {}),
        ({"job": "random-1"}, {}),
        ({"place": Place.best("cpu", "bfloat16")}, {}),
        ({}, {"lr": 0.05}),
        ({}, {"epochs": 1}),
        ({}, {"network": "mlp(width=8)"}),
    ],
    ids=str,
)
def test_networks_trained_otherwise_begin_anew(
    changed: dict[str, Any], fields: dict[str, Any], seen: Seen, tmp_path: Path
) -> None:
    def scored(folder: Path | None) -> cs.Scores:
        of_run = {key: value for key, value in changed.items() if key not in ("small", "test")}
        run = new_run(folder, **of_run)
        return score(changed.get("small", DATA), changed.get("test", TEST), protocol(**fields), run)

    expected = scored(None)
    steps, networks = seen.taken()
    stopped(tmp_path, 4)
    seen.taken()
    assert scored(tmp_path).accuracies == expected.accuracies
    found = seen.taken()
    assert found[0] == steps
    assert same(found[1], networks)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(("before", "then"), [(1, 2), (2, 1), (3, 2)])
def test_other_networks_side_by_side_begin_anew(
    before: int, then: int, seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = score(DATA, TEST, protocol(), new_run(None)).accuracies
    monkeypatch.setattr(evaluation, "together", lambda *_: before)
    stopped(tmp_path, 4)
    seen.taken()
    monkeypatch.setattr(evaluation, "together", lambda *_: then)
    assert score(DATA, TEST, protocol(), new_run(tmp_path)).accuracies == expected
    assert seen.taken()[0] == 3 * STEPS


def test_more_networks_than_before_the_stop_go_on(seen: Seen, tmp_path: Path) -> None:
    stopped(tmp_path, 4, nets=1)
    seen.taken()
    score(DATA, TEST, protocol(nets=2), new_run(tmp_path))
    assert seen.taken()[0] == 2 * STEPS - 4


def test_sets_and_networks_of_one_job_do_not_take_each_others_checkpoint(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share a folder and a job, in runs as in the parts of experiments."""
    recipe = make_recipe("dm", ipc=1, name="tiny", size=8, network=BATCH_NORM, iterations=3, batch=4)
    path, job = tmp_path / "condensed.safetensors", "dm-1"
    with monkeypatch.context() as patched:  # a kill came when the set was saved
        patched.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
        patched.setattr(runs, "SETTLE_SECONDS", 0.0)
        patched.setattr(Run, "drop_checkpoint", lambda self: None)
        small = made_set(path, "dm", recipe, DATA, new_run(tmp_path, job=job))
    assert meta(tmp_path)["job"] == job
    expected = score(small, TEST, protocol(), new_run(None)).accuracies
    steps, _ = seen.taken()
    run = new_run(tmp_path, job=job)
    run.progress = StopAtStep(run, 2)
    with pytest.raises(Interrupted):
        score(small, TEST, protocol(), run)
    assert meta(tmp_path)["job"].startswith("dm-1: networks [0] that score ")
    path.unlink()
    again = made_set(path, "dm", recipe, DATA, new_run(tmp_path, job=job))
    assert torch.equal(again.images, small.images)
    assert not (tmp_path / "checkpoint").exists()
    seen.taken()
    assert score(again, TEST, protocol(), new_run(tmp_path, job=job)).accuracies == expected
    assert seen.taken()[0] == steps


def test_a_scoring_that_has_nothing_left_to_train_leaves_the_checkpoint_alone(tmp_path: Path) -> None:
    """It is of the job that comes next: results.json may have been deleted, so that this one is gone through again."""
    expected = score(DATA, TEST, protocol(), new_run(tmp_path)).accuracies
    run = new_run(tmp_path, job="dm-10")
    run.checkpoint(1, 1.0, {"images": torch.zeros(3)}, force=True)
    before = (tmp_path / "checkpoint").read_bytes()
    assert score(DATA, TEST, protocol(), new_run(tmp_path)).accuracies == expected
    assert (tmp_path / "checkpoint").read_bytes() == before


class Looking(Silent):
    """Notes whether there is a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, list[bool]()

    def update(self, done: int, note: str = "") -> None:
        self.seen.append((self.folder / "checkpoint").exists())


@pytest.mark.parametrize("due", [False, True])
def test_what_takes_less_than_the_time_between_two_checkpoints_writes_none(
    due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if due:
        monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    look = Looking(tmp_path)
    run = new_run(tmp_path, progress=look, _last_save=-1e9)  # a long time of something else went before
    score(DATA, TEST, protocol(nets=1), run)
    assert look.seen[: STEPS - 1] == [False, *[due] * (STEPS - 2)]
    assert not (tmp_path / "checkpoint").exists()


def test_where_no_checkpoint_can_be_written_a_scoring_goes_on(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs, "write_tensors", full)
    with pytest.warns(UserWarning, match="No space left on device: networks half trained are lost") as told:
        found = score(DATA, TEST, protocol(nets=1), new_run(tmp_path)).accuracies
    assert len(told) == 1 and seen.taken()[0] == STEPS
    assert found == score(DATA, TEST, protocol(nets=1), new_run(None)).accuracies
    run = new_run(tmp_path / "stopped")
    (tmp_path / "stopped").mkdir()
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 1000.0)
    run.progress = StopAtStep(run, 4)
    with pytest.raises(cs.UserError, match="No space left on device"):  # who stops is told that it is lost
        score(DATA, TEST, protocol(), run)


def spoiled(tensors: dict[str, Tensor], about: dict[str, Any], how: str) -> None:
    match how:
        case "nan":
            tensors["0.weights"][3] = torch.nan
        case "dtype":
            tensors["0.order"] = tensors["0.order"].float()
        case "seconds":
            about["seconds"] = -1.0
        case "step":
            about["step"] = STEPS + 1


@pytest.mark.parametrize("how", ["nan", "dtype", "seconds", "step"])
def test_a_checkpoint_that_cannot_be_is_refused(how: str, tmp_path: Path) -> None:
    stopped(tmp_path, 4)
    tensors, about = read_tensors(tmp_path / "checkpoint")[0], meta(tmp_path)
    spoiled(tensors, about, how)
    write_tensors(tmp_path / "checkpoint", tensors, {"checkpoint": json.dumps(about)})
    with pytest.raises(cs.UserError, match="delete it to start this job again"):
        score(DATA, TEST, protocol(), new_run(tmp_path))
    (tmp_path / "checkpoint").write_bytes(b"garbage")
    with pytest.raises(cs.UserError, match="delete it to start this job again"):
        score(DATA, TEST, protocol(), new_run(tmp_path))


def test_without_a_folder_a_stop_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = new_run(None)
    run.progress = StopAtStep(run, 4)
    with pytest.raises(Interrupted):
        score(DATA, TEST, protocol(), run)
    assert not list(tmp_path.iterdir())


def test_steps_of_a_sets_own_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    fields: dict[str, Any] = {"network": "mlp(width=8)", "iterations": 1, "steps": 2, "epochs": 2, "batch": 4}
    small = cs.condense(DATA, "dd", ipc=1, device="cpu", **fields)
    look, own = Looking(tmp_path), Protocol(network="mlp(width=8)", nets=2, own_steps=True)
    score(small, TEST, own, new_run(tmp_path, progress=look))
    assert look.seen and not any(look.seen)


def test_of_networks_that_diverge_the_last_numbers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    wild = {"lr": 1e6, "epochs": 20, "nets": 1, "network": "convnet(width=8, depth=2)"}
    stopped(tmp_path, 60, **wild)
    tensors, _ = read_tensors(tmp_path / "checkpoint")
    assert all(bool(each.isfinite().all()) for each in tensors.values())
    assert 0 < meta(tmp_path)["step"] < 60
    for folder in (tmp_path, tmp_path / "another"):
        folder.mkdir(exist_ok=True)
        with pytest.warns(UserWarning, match="1 of 1 networks diverged"):
            score(DATA, TEST, protocol(**wild), new_run(folder))
        assert not (folder / "checkpoint").exists()


def test_streams_are_waited_for_before_networks_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    finite = midway.all_finite
    monkeypatch.setattr(torch.cuda, "synchronize", order.append)
    monkeypatch.setattr(midway, "all_finite", lambda state: (order.append("looked"), finite(state))[1])
    made = protocol()
    trainers = [Trainer(made.network, TrainingSet.of(DATA, CPU.device), made, CPU)]
    gpu = dataclasses.replace(CPU, device=torch.device("cuda"))
    half = Midway(new_run(tmp_path, place=gpu), trainers, job="a")
    half.rest(1)
    assert order == []  # nothing is waited for in vain
    half.run.stop_requested = 2
    with pytest.raises(Interrupted):
        half.rest(2)
    assert order == [gpu.device, "looked"]
    assert meta(tmp_path)["step"] == 2
