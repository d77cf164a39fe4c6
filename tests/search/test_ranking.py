"""Ranking architectures: the order, networks of users, failures, and parallel training."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.networks import name_architectures
from condenset.runs.context import RunContext
from condenset.search import ranker
from condenset.search.ranker import Ranker
from condenset.search.ranking import rank_architectures
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.architectures import BAD, CPU, FAST, GOOD, linear, record_trainings
from helpers.local_engine import LocalEngine
from helpers.reference_dm import tiny_data

TrainVal = tuple[cs.ImageData, cs.ImageData]


class UnusualNetwork(nn.Module):
    """A network with a bare parameter, PReLU, dropout, batch norm, a frozen layer and tied weights."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.mixing = nn.Conv2d(channels, channels, 1).requires_grad_(False)
        self.first = nn.Linear(channels * size**2, 16)
        self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third.weight = self.second.weight
        self.head = nn.Sequential(nn.PReLU(), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first((self.mixing(images) * self.scale).flatten(1))
        logits: Tensor = self.head(self.third(self.second(hidden)))
        return logits


def test_better_network_ranks_first(train_val: TrainVal) -> None:
    ranking = cs.rank([BAD, GOOD], *train_val, **{**FAST, "epochs": 40})
    assert [row.name for row in ranking.rows] == [GOOD, BAD]
    assert ranking.best.name == GOOD
    assert ranking.best.accuracy > 0.8 > 0.5 > ranking.rows[1].accuracy
    assert all(row.seconds > 0 and not row.reason for row in ranking.rows)
    content = json.loads(ranking.to_json())
    assert [row["name"] for row in content["rows"]] == [GOOD, BAD]
    assert content["protocol"]["epochs"] == 40
    assert "network" not in content["protocol"]
    lines = str(ranking).splitlines()
    assert len(lines) == 3
    assert lines[1].endswith(GOOD)
    assert f"{100 * ranking.best.accuracy:.1f}" in lines[1]


def test_default_protocol_is_that_of_the_paper(train_val: TrainVal) -> None:
    protocol = cs.rank([linear], *train_val, steps=1, device="cpu").protocol
    assert (protocol["num_networks"], protocol["epochs"], protocol["batch_size"]) == (1, 200, 250)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch warns on a CPU without bfloat16
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_networks_of_users(precision: str, train_val: TrainVal) -> None:
    options = {**FAST, "epochs": 20, "precision": precision}
    ranking = cs.rank([linear, UnusualNetwork, GOOD], *train_val, **options)
    assert {row.name for row in ranking.rows} == {"linear", "UnusualNetwork", GOOD}
    assert all(row.accuracy > 0.5 for row in ranking.rows), str(ranking)


def test_networks_that_change_images_in_place_do_not_affect_others(train_val: TrainVal) -> None:
    class InPlace(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.mul_(50).flatten(1))

    def in_place(channels: int, size: int, num_classes: int) -> nn.Module:
        return InPlace(channels * size**2, num_classes)

    condensed = cs.condense(train_val[0], "random", ipc=2, device="cpu")
    before = condensed.normalized().clone()
    ranking = cs.rank([in_place, linear], condensed, train_val[1], **FAST)
    assert not any(row.reason for row in ranking.rows)
    alone = cs.rank([linear], condensed, train_val[1], **FAST)
    assert next(row for row in ranking.rows if row.name == "linear").accuracy == alone.best.accuracy
    assert torch.equal(condensed.normalized(), before)


def test_networks_of_users_are_a_function_of_the_seed(train_val: TrainVal) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (
        cs.rank([UnusualNetwork], *train_val, num_networks=2, seed=seed, **FAST).best.accuracy for seed in (0, 0, 1)
    )
    assert first == second != other
    assert torch.equal(torch.random.get_rng_state(), state)  # the global generator belongs to the user


def diverging(channels: int, size: int, num_classes: int) -> nn.Module:
    layer = nn.Linear(channels * size**2, num_classes)
    nn.init.constant_(layer.weight, 1e38)
    return nn.Sequential(nn.Flatten(), layer)


def broken(channels: int, size: int, num_classes: int) -> nn.Module:
    raise RuntimeError("no such\nlayer")


def no_module(channels: int, size: int, num_classes: int) -> Any:
    return "text"


def too_many_logits(channels: int, size: int, num_classes: int) -> nn.Module:
    return linear(channels, size, num_classes + 1)


def without_parameters(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


FAILURES: list[tuple[str | Callable[..., Any], str]] = [
    ("convnet(depth=4)", "at least 16"),
    ("convent", "did you mean 'convnet'"),
    (broken, "no such layer"),
    (diverging, "diverged"),
    (no_module, "must return an nn.Module, but got 'str'"),
    (too_many_logits, r"must return logits of shape \(2, 3\) .*, but got \(2, 4\)"),
    (without_parameters, "must have trainable parameters"),
]


@pytest.mark.parametrize(("architecture", "reason"), FAILURES)
def test_failing_architectures_come_last_with_the_reason(
    architecture: str | Callable[..., Any], reason: str, train_val: TrainVal
) -> None:
    ranking = cs.rank([architecture, GOOD], *train_val, **FAST)
    first, last = ranking.rows
    assert (first.name, first.reason) == (GOOD, "")
    with pytest.raises(cs.UserError, match=reason):
        raise cs.UserError(last.reason)
    assert "\n" not in last.reason
    assert json.loads(ranking.to_json())["rows"][1]["accuracy"] is None
    assert last.reason in str(ranking)
    alone = cs.rank([architecture], *train_val, **FAST)
    with pytest.raises(cs.UserError, match="none of the architectures could be trained"):
        _ = alone.best


def test_equivalent_specs_are_ranked_once(train_val: TrainVal) -> None:
    architectures = [GOOD, "convnet(depth=1, width=8, norm='instance')", linear, linear]
    assert {row.name for row in cs.rank(architectures, *train_val, **FAST).rows} == {GOOD, "linear"}
    named = cs.rank({"first": linear, "second": GOOD}, *train_val, **FAST)
    assert {row.name for row in named.rows} == {"first", "second"}


def test_builders_without_a_name_need_a_mapping(train_val: TrainVal) -> None:
    builders: list[Any] = [lambda *shape: linear(*shape), functools.partial(linear)]
    for builder in builders:
        with pytest.raises(cs.UserError, match=r"a builder must have a name.*mapping"):
            cs.rank([builder], *train_val, **FAST)
        (row,) = cs.rank({"named": builder}, *train_val, **FAST).rows
        assert (row.name, row.reason) == ("named", "")


def test_invalid_arguments(train_val: TrainVal) -> None:
    train, val = train_val
    for architectures, message in (([], "at least one"), ("convnet", "must be a list"), ([3], "a spec or a builder")):
        with pytest.raises(cs.UserError, match=message):
            cs.rank(architectures, train, val, **FAST)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match="did you mean 'epochs'"):
        cs.rank([GOOD], train, val, epoch=3)
    with pytest.raises(cs.UserError, match=r"steps must be .*, but got 0"):
        cs.rank([GOOD], train, val, steps=0)
    with pytest.raises(cs.UserError, match="network must not be given"):
        cs.rank([GOOD], train, val, network=BAD)
    with pytest.raises(cs.UserError, match="learned_steps must be false"):
        cs.rank([GOOD], train, val, learned_steps=True, **FAST)
    with pytest.raises(cs.UserError, match="classes"):
        cs.rank([GOOD], train, tiny_data([4] * 4))
    with pytest.raises(cs.UserError, match="validation images must not be training images"):
        cs.rank([GOOD], train, cs.Splits(train=train, test=val))


def test_splits_are_validated_on_a_part_of_the_training_images(train_val: TrainVal) -> None:
    data = train_val[0]
    train, val = cs.train_val_split(data, seed=5)
    condensed = cs.condense(train, "random", ipc=4, device="cpu")
    options = {**FAST, "seed": 5}
    by_splits = [
        cs.rank([GOOD], condensed, cs.Splits(train=data, test=test), **options) for test in (data, tiny_data([2] * 3))
    ]
    by_part = cs.rank([GOOD], condensed, val, **options)
    assert len({ranking.best.accuracy for ranking in (*by_splits, by_part)}) == 1
    assert len({ranking.protocol["seed"] for ranking in by_splits}) == 1


def test_sets_that_contain_validation_images() -> None:
    splits = cs.Splits(train=tiny_data([12, 12]), test=tiny_data([2, 2]))
    condensed = cs.condense(splits.train, "random", ipc=1, device="cpu")
    with pytest.warns(UserWarning, match=r"the validation images contain images.*use cs\.train_val_split"):
        cs.rank(["mlp(width=4)"], condensed, splits, epochs=0, device="cpu")
    with pytest.warns(UserWarning, match=r"the validation images contain images.*use cs\.train_val_split"):
        cs.rank(["mlp(width=4)"], condensed, cs.train_val_split(splits.train)[1], epochs=0, device="cpu")
    with pytest.raises(cs.UserError, match="must not be training images, but they contain training images"):
        cs.rank(["mlp(width=4)"], tiny_data([12, 12]), splits, device="cpu")  # equal images in another object


def test_parts_with_another_seed_may_contain_validation_images() -> None:
    splits = cs.Splits(train=tiny_data([12, 12]), test=tiny_data([2, 2]))
    train, _ = cs.train_val_split(splits.train)
    condensed = cs.condense(train, "random", ipc=1, device="cpu")
    cs.rank(["mlp(width=4)"], condensed, splits, epochs=0, device="cpu")  # no warning: the other part
    with pytest.warns(UserWarning, match=r"the validation images may contain images.*use cs\.train_val_split"):
        cs.rank(["mlp(width=4)"], condensed, splits, epochs=0, device="cpu", seed=1)
    with pytest.raises(cs.UserError, match=r"may contain training images: .* one call of cs\.train_val_split"):
        cs.rank(["mlp(width=4)"], train, splits, epochs=0, device="cpu", seed=1)


def test_networks_next_to_one_that_diverges_are_trained_once(
    train_val: TrainVal, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_finite, numbers, trainers = Trainer.is_finite, record_trainings(monkeypatch), []

    def diverge_first(self: Trainer) -> bool:
        trainers.append(self)
        return len(trainers) > 1 and is_finite(self)

    monkeypatch.setattr(Trainer, "is_finite", diverge_first)
    monkeypatch.setattr(ranker, "max_parallel", lambda compute: 3)
    ranking = cs.rank([BAD, GOOD, "mlp(width=8)"], *train_val, **{**FAST, "num_networks": 2})
    assert numbers == [0, 0, 0, 1, 1]
    assert [row.reason.partition(":")[0] for row in ranking.rows] == ["", "", "Training diverged"]


def test_architectures_as_tasks_have_the_same_ranking(train_val: TrainVal, tmp_path: Path) -> None:
    architectures = {"good": GOOD, "bad": BAD, "own": linear, "wrong": "convnet(depth=9)"}
    protocol, runs = Protocol(epochs=3, num_networks=2), []
    for name, engine in (("local", None), ("tasks", LocalEngine())):
        (tmp_path / name).mkdir()
        compute = ComputeDevice.select("cpu")
        runs.append(RunContext(compute=compute, directory=tmp_path / name, job="rank", engine=engine))
    expected, ranking = (rank_architectures(architectures, *train_val, protocol, run) for run in runs)
    rows = [(row.name, row.accuracy, row.reason) for row in ranking.rows if not row.reason]
    assert rows == [(row.name, row.accuracy, row.reason) for row in expected.rows if not row.reason]
    assert [row.reason for row in ranking.rows] == [row.reason for row in expected.rows]
    assert len(runs[1].network_events()) == len(runs[0].network_events())


def test_parallel_training_does_not_change_the_result(train_val: TrainVal, monkeypatch: pytest.MonkeyPatch) -> None:
    architectures = [GOOD, BAD, "mlp(width=8)", "convnet(depth=9)"]
    protocol = Protocol(num_networks=2, epochs=2, batch_size=16)

    def rank() -> list[tuple[object, ...]]:
        other_sets = {"test": train_val[0]}
        rows = rank_architectures(
            architectures, *train_val, protocol, RunContext(compute=CPU), other_sets=other_sets
        ).rows
        assert rows[3].reason
        return [(row.name, row.accuracy, row.other_accuracies) for row in rows[:3]] + [(rows[3].name, rows[3].reason)]

    alone = rank()
    group_sizes: list[int] = []
    train_in_parallel = ranker.train_in_parallel

    def record(trainings: list[Any], device: torch.device) -> Any:
        group_sizes.append(len(trainings))
        return train_in_parallel(trainings, device)

    monkeypatch.setattr(ranker, "max_parallel", lambda compute: 4)
    monkeypatch.setattr(ranker, "train_in_parallel", record)
    assert rank() == alone
    assert group_sizes == [3, 3]  # the fourth cannot be built


def test_groups_contain_built_in_networks_and_exist_on_a_gpu_only(train_val: TrainVal) -> None:
    specs = [f"mlp(width={width})" for width in range(1, 8)]
    architectures: list[Any] = [*specs[:6], linear, specs[6]]
    protocol = Protocol(num_networks=1, epochs=1, batch_size=16)
    names = name_architectures(architectures, 8)
    eval_sets = {ranker.VALIDATION: train_val[1]}
    on_cpu = Ranker(names, train_val[0], eval_sets, protocol, RunContext(compute=CPU))
    assert list(on_cpu.groups()) == [[name] for name in names]
    on_cpu.run.compute = ComputeDevice(torch.device("cuda"), torch.bfloat16)
    assert list(on_cpu.groups()) == [specs[:3], specs[3:6], ["linear"], [specs[6]]]


def test_other_images_do_not_affect_the_ranking(train_val: TrainVal) -> None:
    protocol = Protocol(num_networks=1, epochs=2, batch_size=16)
    without, with_other = (
        rank_architectures([GOOD, linear], *train_val, protocol, RunContext(compute=CPU), other_sets=other_sets).rows
        for other_sets in (None, {"test": tiny_data([9] * 3)})
    )
    assert [(row.name, row.accuracy) for row in without] == [(row.name, row.accuracy) for row in with_other]
    assert all(0 <= row.other_accuracies["test"] <= 1 for row in with_other)
