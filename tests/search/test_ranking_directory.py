"""A ranking with a directory: what it stores, and how it is resumed."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import condenset as cs
from condenset.io.progress import NullProgress
from condenset.networks import Architectures
from condenset.runs import directory as run_directory
from condenset.runs.context import RunContext
from condenset.runs.directory import RANKING, RANKING_CHECKPOINT
from condenset.runs.identity import open_directory
from condenset.runs.loop import Interrupted
from condenset.search import ranker
from condenset.search.ranker import Ranker
from condenset.search.ranking import Ranking, rank_architectures
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.architectures import BAD, CPU, FAST, GOOD, linear, record_trainings
from helpers.command_line import list_files
from helpers.training_steps import record_training_steps

TrainVal = tuple[cs.ImageData, cs.ImageData]
PROTOCOL = Protocol(num_networks=2, epochs=4, batch_size=16)


class StopAtNetwork(NullProgress):
    """Ask the run to stop when so many networks, or parts of one, are trained."""

    def __init__(self, run: RunContext, number: float) -> None:
        self.run, self.number = run, number

    def update(self, done: float, note: str = "") -> None:
        self.run.stop.requested = int(done >= self.number)


def make_run(directory: Path | None) -> RunContext:
    return RunContext(compute=CPU, directory=directory, job="rank")


def rank_until(
    architectures: Architectures, train_val: TrainVal, directory: Path, number: float, protocol: Protocol = PROTOCOL
) -> None:
    """Begin a ranking and interrupt it."""
    run = make_run(directory)
    run.progress = StopAtNetwork(run, number)
    with pytest.raises(Interrupted):
        rank_architectures(architectures, *train_val, protocol, run)


def accuracies(ranking: Ranking) -> list[tuple[str, float]]:
    return [(row.name, row.accuracy) for row in ranking.rows if not row.reason]


def raise_error(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_resumed_ranking_trains_only_missing_architectures(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architectures: list[Any] = [GOOD, "convnet(depth=9)", linear, BAD]
    protocol = Protocol(num_networks=1, epochs=2, batch_size=16)
    rank_until(architectures, train_val, tmp_path, 3, protocol)
    specs: list[str] = []
    init = Trainer.__init__

    def record(self: Trainer, spec: str, *args: Any, **options: Any) -> None:
        specs.append(spec)
        init(self, spec, *args, **options)

    monkeypatch.setattr(Trainer, "__init__", record)
    resumed = rank_architectures(architectures, *train_val, protocol, make_run(tmp_path))
    assert specs == [BAD]
    assert accuracies(resumed) == accuracies(rank_architectures(architectures, *train_val, protocol, make_run(None)))
    specs.clear()
    other_protocol = Protocol(num_networks=1, epochs=3, batch_size=16)
    rank_architectures(architectures[:1], *train_val, other_protocol, make_run(tmp_path))
    assert specs == [GOOD]  # results of other settings are not used


@pytest.mark.parametrize("name", ["notes.txt", RANKING])
def test_directories_with_other_content_are_refused(name: str, train_val: TrainVal, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    message = f"must be empty or come from an earlier call, but contains '{re.escape(name)}'"
    with pytest.raises(cs.UserError, match=message):
        cs.rank([GOOD], *train_val, directory=tmp_path, **FAST)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_ranking_shares_the_directory_of_a_set(train_val: TrainVal, tmp_path: Path) -> None:
    condensed = cs.condense(train_val[0], "random", ipc=1, directory=tmp_path, verbose=False)
    ranking = cs.rank([GOOD], condensed, train_val[1], directory=tmp_path, **FAST)
    assert cs.rank([GOOD], condensed, train_val[1], directory=tmp_path, **FAST) == ranking
    again = cs.condense(train_val[0], "random", ipc=1, directory=tmp_path, verbose=False)
    assert again.fingerprint == condensed.fingerprint


def test_run_directory_can_contain_a_ranking(train_val: TrainVal, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("# condenset 0.1.0")
    first = cs.rank([GOOD], *train_val, directory=tmp_path, **FAST)
    assert json.loads((tmp_path / RANKING).read_text())["rows"][0]["name"] == first.best.name
    second = cs.rank([GOOD, BAD], *train_val, directory=tmp_path, **FAST)
    assert len(second.rows) == 2


def test_trained_networks_are_used_again(train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = Protocol(num_networks=3, epochs=2, batch_size=16)
    rank_until([GOOD], train_val, tmp_path, 2, protocol)
    numbers = record_trainings(monkeypatch)
    resumed, undisturbed = (
        rank_architectures([GOOD], *train_val, protocol, make_run(directory)) for directory in (tmp_path, None)
    )
    assert numbers == [2, 0, 1, 2]
    assert resumed.best.accuracy == undisturbed.best.accuracy
    numbers.clear()
    rank_architectures([GOOD], *train_val, dataclasses.replace(protocol, num_networks=4), make_run(tmp_path))
    assert numbers == [3]  # a network does not depend on the number of networks


def test_larger_num_networks_adds_networks_to_a_group(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: 2)
    numbers = record_trainings(monkeypatch)
    first = cs.rank([GOOD, BAD], *train_val, directory=tmp_path, **FAST)
    second = cs.rank([GOOD, BAD], *train_val, directory=tmp_path, num_networks=2, **FAST)
    assert numbers == [0, 0, 1, 1]
    assert {row.name for row in second.rows} == {row.name for row in first.rows}
    monkeypatch.setattr(Trainer, "accuracy", raise_error(cs.UserError("it diverged")))
    failed = cs.rank([GOOD, BAD], *train_val, num_networks=2, **FAST)
    assert [row.reason for row in failed.rows] == ["it diverged"] * 2


def test_failures_are_stored_except_those_of_users_networks(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users may correct their code. Failures with other settings have no effect."""
    architectures: list[Any] = [GOOD, linear]
    accuracy, numbers = Trainer.accuracy, record_trainings(monkeypatch)
    monkeypatch.setattr(Trainer, "accuracy", raise_error(cs.UserError("it diverged")))
    cs.rank(architectures, *train_val, directory=tmp_path, **FAST)
    monkeypatch.setattr(Trainer, "accuracy", accuracy)
    ranking = cs.rank(architectures, *train_val, directory=tmp_path, **FAST)
    assert [(row.name, row.reason) for row in ranking.rows] == [("linear", ""), (GOOD, "it diverged")]
    assert len(numbers) == 3
    assert not cs.rank([GOOD], *train_val, directory=tmp_path, lr=0.02, **FAST).rows[0].reason


def test_a_changed_builder_is_trained_again(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*shape: int) -> nn.Module:
        return nn.Sequential(linear(*shape), nn.Softplus())

    numbers = record_trainings(monkeypatch)
    for builder in (linear, linear, changed):
        cs.rank({"mine": builder, GOOD: GOOD}, *train_val, directory=tmp_path, **FAST)
    assert numbers == [0, 0, 0]  # mine, GOOD, the changed one


@pytest.mark.parametrize("group_size", [1, 2])
def test_interruptions_do_not_change_the_result_or_repeat_steps(
    group_size: int, train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: group_size)
    specs, steps = ["convnet(width=8, depth=1, norm='batch')", GOOD], record_training_steps(monkeypatch)
    undisturbed = rank_architectures(specs, *train_val, PROTOCOL, make_run(None))
    num_steps = len(steps)
    steps.clear()
    for number in (0.6, 1.4, 2.6):
        rank_until(specs, train_val, tmp_path, number)
    assert (tmp_path / RANKING_CHECKPOINT).exists()
    run = make_run(tmp_path)
    resumed = rank_architectures(specs, *train_val, PROTOCOL, run)
    assert len(steps) == num_steps
    assert accuracies(resumed) == accuracies(undisturbed)
    assert not (tmp_path / RANKING_CHECKPOINT).exists()
    event_seconds = [event["seconds"] for event in run.read_events("network")]
    assert sum(row.seconds for row in resumed.rows) == pytest.approx(sum(event_seconds), abs=0.01)


def test_training_of_a_users_network_begins_again(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = record_training_steps(monkeypatch)
    rank_until([linear], train_val, tmp_path, 0.6)
    assert steps
    assert not (tmp_path / RANKING_CHECKPOINT).exists()
    steps.clear()
    rank_architectures([linear], *train_val, PROTOCOL, make_run(tmp_path))
    assert len(steps) == PROTOCOL.num_networks * PROTOCOL.training_steps(len(train_val[0]))


@pytest.mark.parametrize("group_size", [1, 2])
def test_damaged_checkpoint_stops_the_ranking(
    group_size: int, train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not recorded as a failure of the architecture."""
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: group_size)
    rank_until([GOOD, BAD], train_val, tmp_path, 0.6)
    (tmp_path / RANKING_CHECKPOINT).write_bytes(b"garbage")
    with pytest.raises(cs.UserError, match=f"{RANKING_CHECKPOINT}.*delete"):
        rank_architectures([GOOD, BAD], *train_val, PROTOCOL, make_run(tmp_path))
    (tmp_path / RANKING_CHECKPOINT).unlink()
    ranking = rank_architectures([GOOD, BAD], *train_val, PROTOCOL, make_run(tmp_path))
    assert [row.reason for row in ranking.rows] == ["", ""]


def test_previous_checkpoint_alone_belongs_to_a_ranking(train_val: TrainVal, tmp_path: Path) -> None:
    """A process was killed after it renamed the checkpoint and before it wrote the next one."""
    open_directory(tmp_path, {})
    rank_until([GOOD], train_val, tmp_path, 0.6)
    (tmp_path / RANKING_CHECKPOINT).rename(tmp_path / f"{RANKING_CHECKPOINT}.previous")
    assert not cs.rank([GOOD], *train_val, directory=tmp_path, **FAST).best.reason
    assert list_files(tmp_path) == ["events.jsonl", RANKING]


def test_checkpoint_of_the_run_is_left_alone(train_val: TrainVal, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(b"of the run")
    rank_until([GOOD], train_val, tmp_path, 0.6)
    assert (tmp_path / RANKING_CHECKPOINT).exists()
    rank_architectures([GOOD], *train_val, PROTOCOL, make_run(tmp_path))
    assert not (tmp_path / RANKING_CHECKPOINT).exists()
    assert (tmp_path / "checkpoint").read_bytes() == b"of the run"


def test_groups_are_the_same_after_an_interruption(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven networks train in groups of 3, 3 and 1. The remaining four must not become two groups of 2."""
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: 3)
    specs, steps = [f"mlp(width={width})" for width in range(4, 11)], record_training_steps(monkeypatch)
    rank_architectures(specs, *train_val, PROTOCOL, make_run(None))
    num_steps = len(steps)
    steps.clear()
    for number in (2.0, 7.5, 10.0):
        rank_until(specs, train_val, tmp_path, number)
    rank_architectures(specs, *train_val, PROTOCOL, make_run(tmp_path))
    assert len(steps) == num_steps


def test_seconds_of_trained_networks_are_counted_once_if_memory_runs_out(
    train_val: TrainVal, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_networks = Ranker._train_networks

    def fail_second(self: Ranker, trainers: Mapping[str, Trainer], number: int) -> None:
        if number:
            raise torch.OutOfMemoryError("too large")
        train_networks(self, trainers, number)
        self.seconds[GOOD] = 100.0

    monkeypatch.setattr(Ranker, "_train_networks", fail_second)
    (row,) = rank_architectures([GOOD], *train_val, PROTOCOL, make_run(None)).rows
    assert "too large" in row.reason
    assert row.seconds <= 100


@pytest.mark.parametrize("group_size", [1, 2])
def test_write_errors_stop_the_ranking(
    group_size: int, train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not recorded as failures of the architecture."""
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: group_size)
    monkeypatch.setattr(RunContext, "log_event", raise_error(cs.UserError("cannot write to it")))
    with pytest.raises(cs.UserError, match="cannot write to it"):
        cs.rank([GOOD, BAD], *train_val, directory=tmp_path, **FAST)
    assert not (tmp_path / RANKING).exists()


def test_invalid_events_are_ignored(train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = cs.rank([GOOD], *train_val, directory=tmp_path, **FAST)
    path = tmp_path / "events.jsonl"
    event = json.loads(path.read_text().splitlines()[-1])
    (key,) = event["accuracies"]
    invalid_values: dict[str, list[object]] = {
        "net": ["0", None, True, -1, 0.0, []],
        "name": [None, [], "other"],
        "seconds": ["1", None, []],
        "accuracies": [None, [], {}, {key: "1"}, {key: 7.5}, {key: 0.5, "x": 0.5}],
    }
    lines = [json.dumps({**event, name: value}) for name, values in invalid_values.items() for value in values]
    lines += ["9" * 5000, "[", "3"]
    path.write_text("\n".join([*lines, json.dumps(event), json.dumps(event)]) + "\n")
    numbers = record_trainings(monkeypatch)
    assert cs.rank([GOOD], *train_val, directory=tmp_path, **FAST) == ranking
    path.write_text("\n".join(lines) + "\n")
    repeated = cs.rank([GOOD], *train_val, directory=tmp_path, **FAST)
    assert (numbers, repeated.best.accuracy) == ([0], ranking.best.accuracy)


def test_result_is_stored_and_networks_are_not_trained_again(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranking = cs.rank([GOOD, linear], *train_val, directory=tmp_path / "a", **FAST)
    assert json.loads((tmp_path / "a" / RANKING).read_text()) == json.loads(ranking.to_json())
    monkeypatch.setattr(Trainer, "iter_train", None)
    assert cs.rank([GOOD, linear], *train_val, directory=tmp_path / "a", **FAST) == ranking


def test_temporary_files_of_a_killed_process_are_removed(train_val: TrainVal, tmp_path: Path) -> None:
    (tmp_path / ".ranking.json.abc.tmp").write_text("half")
    (tmp_path / ".other.tmp").touch()
    cs.rank([GOOD], *train_val, directory=tmp_path, **FAST)
    assert set(list_files(tmp_path)) == {"events.jsonl", "ranking.json", ".other.tmp"}
    (tmp_path / "recipe.toml").write_text("# condenset run\n")
    run_directory.create_run_directory(tmp_path, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"ranking.json", ".other.tmp"}  # no run wrote these


def narrow(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 1), nn.Linear(1, num_classes))


def wide(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, 32), nn.Linear(32, num_classes))


def test_stored_results_do_not_depend_on_the_order_of_architectures(
    train_val: TrainVal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cs.rank([narrow, wide, linear], *train_val, directory=tmp_path, **FAST)
    assert len({row.accuracy for row in first.rows}) > 1
    monkeypatch.setattr(Trainer, "iter_train", None)
    second = cs.rank([wide, linear, narrow], *train_val, directory=tmp_path, **FAST)
    assert {row.name: row for row in second.rows} == {row.name: row for row in first.rows}


def test_name_of_another_spec_is_trained_again(train_val: TrainVal, tmp_path: Path) -> None:
    first, second = (cs.rank({"name": GOOD}, *train_val, directory=tmp_path, **FAST) for _ in range(2))
    assert first == second
    other = cs.rank({"name": BAD}, *train_val, directory=tmp_path, **FAST)
    assert other.best.accuracy == cs.rank([BAD], *train_val, **FAST).best.accuracy != first.best.accuracy
