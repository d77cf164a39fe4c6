"""Ranking architectures: the order it finds, users' own networks, failures, and several at once."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from torch import Tensor, nn

import condenset as cs
from condenset import builders, draws, ranking
from condenset.engine import Place
from condenset.ranking import search
from condenset.recipes import Protocol
from condenset.runs import Run
from condenset.train import Trainer, TrainingSet
from plain import tiny_data
from ranked import BAD, CPU, FAST, GOOD, linear, trainings


class Odd(nn.Module):
    """What no spec has: a bare parameter, PReLU, dropout, a frozen layer and weights that are tied."""

    def __init__(self, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.mixing = nn.Conv2d(channels, channels, 1).requires_grad_(False)
        self.first = nn.Linear(channels * size**2, 16)
        self.second, self.third = nn.Linear(16, 16), nn.Linear(16, 16)
        self.third.weight = self.second.weight
        self.rest = nn.Sequential(nn.PReLU(), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first((self.mixing(images) * self.scale).flatten(1))
        logits: Tensor = self.rest(self.third(self.second(hidden)))
        return logits


def test_the_better_network_comes_first(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    train, validation = parts
    ranking = cs.rank([BAD, GOOD], train, validation, **{**FAST, "epochs": 40})
    assert [row.name for row in ranking.rows] == [GOOD, BAD]
    assert ranking.best.name == GOOD
    assert ranking.best.accuracy > 0.8 > 0.5 > ranking.rows[1].accuracy
    assert all(row.seconds > 0 and not row.reason for row in ranking.rows)
    told = json.loads(ranking.to_json())
    assert [row["name"] for row in told["rows"]] == [GOOD, BAD]
    assert told["protocol"]["epochs"] == 40 and "network" not in told["protocol"]
    lines = str(ranking).splitlines()
    assert len(lines) == 3 and lines[1].endswith(GOOD) and f"{100 * ranking.best.accuracy:.1f}" in lines[1]


def test_the_protocol_is_the_papers_unless_told(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    protocol = cs.rank([linear], *parts, steps=1, device="cpu").protocol
    assert (protocol["nets"], protocol["epochs"], protocol["batch"]) == (1, 200, 250)


def test_users_own_networks_are_ranked_too(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    ranking = cs.rank([linear, Odd, GOOD], *parts, **{**FAST, "epochs": 20})
    assert {row.name for row in ranking.rows} == {"linear", "Odd", GOOD}
    assert all(row.accuracy > 0.5 for row in ranking.rows)


def test_a_network_that_works_in_place_changes_nothing_for_others(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    class InPlace(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images.mul_(50).flatten(1))

    small = cs.condense(parts[0], "random", ipc=2, device="cpu")
    before = small.normalised().clone()
    ranked = cs.rank([lambda c, s, k: InPlace(c * s * s, k), linear], small, parts[1], **FAST)
    assert not any(row.reason for row in ranked.rows)
    alone = cs.rank([linear], small, parts[1], **FAST)
    assert next(row for row in ranked.rows if row.name == "linear").accuracy == alone.best.accuracy
    assert torch.equal(small.normalised(), before)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what torch says on a CPU without bfloat16
def test_users_own_networks_bear_another_precision(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    ranking = cs.rank([linear, Odd, GOOD], *parts, precision="bfloat16", **{**FAST, "epochs": 20})
    assert all(row.accuracy > 0.5 for row in ranking.rows), str(ranking)


def test_users_own_networks_are_a_function_of_the_seed(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (cs.rank([Odd], *parts, nets=2, seed=seed, **FAST).best.accuracy for seed in (0, 0, 1))
    assert first == again != other
    assert torch.equal(torch.random.get_rng_state(), before)  # which is the user's


def test_a_network_of_ours_given_as_a_builder_learns_as_its_spec_does(
    parts: tuple[cs.ImageData, cs.ImageData],
) -> None:
    """From the same start, the two ways through the trainer are the same training."""
    data, protocol = TrainingSet.of(parts[0], CPU.device), Protocol(epochs=3, batch=16, nets=1)
    ours = Trainer("convnet(width=4, depth=1, norm='batch')", data, protocol, CPU)
    ours.train(0, "x")
    network = cs.NETWORKS["convnet"](channels=3, size=8, num_classes=3, width=4, depth=1, norm="batch")
    start = ours.parameters.initial(draws.flat_uniform(draws.make_key(0, "x", "network"), 0, ours.parameters.num))
    network.load_state_dict(ours.parameters.views(start, torch.float32), strict=False)
    theirs = Trainer(network, data, protocol, CPU)
    theirs.train(0, "x")
    torch.testing.assert_close(theirs.weights, ours.weights)


def test_what_is_frozen_stays_and_ties_hold() -> None:
    data = TrainingSet.of(tiny_data([8] * 3), CPU.device)
    network = Odd(3, 8, 3)
    trainer = Trainer(network, data, Protocol(epochs=1, batch=8, nets=1), CPU)
    assert trainer.parameters.num == sum(each.numel() for each in network.parameters() if each.requires_grad)
    before = trainer.parameters.initial(torch.rand(trainer.parameters.num))
    trainer.train(0)
    assert not torch.equal(trainer.weights, before)
    names = {row.name for row in trainer.parameters.rows}
    assert "third.weight" not in names and not any(name.startswith("mixing") for name in names)


def diverging(channels: int, size: int, num_classes: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, num_classes))
    nn.init.constant_(network[1].weight, 1e38)
    return network


def broken(channels: int, size: int, num_classes: int) -> nn.Module:
    raise RuntimeError("no such\nlayer")


FAILURES = {
    "convnet(depth=4)": "needs images of at least 16x16",
    "convent": "did you mean 'convnet'",
    broken: "no such layer",
    diverging: "diverged",
    functools.partial(lambda c, s, k: "text"): "must give an nn.Module, but got 'str'",
    functools.partial(linear, num_classes=5): "multiple values",
    (lambda c, s, k: linear(c, s, k + 1)): r"must give \(images, 3\) numbers, but got \(2, 4\)",
    (lambda c, s, k: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())): "must have parameters to learn",
}


@pytest.mark.parametrize("failing", FAILURES, ids=range(len(FAILURES)))
def test_what_fails_comes_last_with_its_reason(failing: object, parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    ranking = cs.rank([failing, GOOD], *parts, **FAST)
    assert ranking.rows[0].name == GOOD
    assert not ranking.rows[0].reason
    last = ranking.rows[1]
    with pytest.raises(AssertionError, match=FAILURES[failing]):
        raise AssertionError(last.reason)
    assert "\n" not in last.reason
    assert json.loads(ranking.to_json())["rows"][1]["accuracy"] is None
    assert last.reason in str(ranking)
    alone = cs.rank([failing], *parts, **FAST)
    with pytest.raises(cs.UserError, match="none of the architectures could be trained"):
        _ = alone.best


def test_equal_specs_are_one_and_equal_names_are_told_apart(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    same = [GOOD, "convnet(depth=1, width=8, norm='instance')", linear, linear]
    assert {row.name for row in cs.rank(same, *parts, **FAST).rows} == {GOOD, "linear", "linear-2"}
    named = cs.rank({"mine": linear, "theirs": GOOD}, *parts, **FAST)
    assert {row.name for row in named.rows} == {"mine", "theirs"}


def test_mistakes_are_one_line(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    train, validation = parts
    for architectures, match in (([], "at least one"), ("convnet", "must be a list"), ([3], "a spec or a builder")):
        with pytest.raises(cs.UserError, match=match):
            cs.rank(architectures, train, validation, **FAST)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match="did you mean 'epochs'"):
        cs.rank([GOOD], train, validation, epoch=3)
    with pytest.raises(cs.UserError, match="steps must be a whole number, 1 or more, but got 0"):
        cs.rank([GOOD], train, validation, steps=0)
    with pytest.raises(cs.UserError, match="are the architectures given"):
        cs.rank([GOOD], train, validation, network=BAD)
    with pytest.raises(cs.UserError, match="own_steps must be false: only a score is by"):
        cs.rank([GOOD], train, validation, own_steps=True, **FAST)
    with pytest.raises(cs.UserError, match="classes"):
        cs.rank([GOOD], train, tiny_data([4, 4]))
    with pytest.raises(cs.UserError, match="others than those trained on"):
        cs.rank([GOOD], train, cs.Splits(train=train, test=validation))


def test_of_splits_the_test_images_are_not_looked_at(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    train, _ = parts
    rest, held = cs.split_off(train)
    small = cs.condense(rest, "random", ipc=4, device="cpu")
    rankings = [
        cs.rank([GOOD], small, cs.Splits(train=train, test=test), **FAST) for test in (train, tiny_data([2] * 3))
    ]
    own = cs.rank([GOOD], small, held, **FAST)
    assert len({ranking.best.accuracy for ranking in (*rankings, own)}) == 1


def test_a_set_of_the_images_that_validate_is_warned_of_and_the_whole_of_them_refused() -> None:
    splits = cs.Splits(train=tiny_data([12, 12]), test=tiny_data([2, 2]))
    small = cs.condense(splits.train, "random", ipc=1, device="cpu")
    with pytest.warns(UserWarning, match=r"made of images some of which will validate.*first part of cs\.split_off"):
        cs.rank(["mlp(width=4)"], small, splits, epochs=0, device="cpu")
    with pytest.raises(cs.UserError, match="validation images must be others"):
        cs.rank(["mlp(width=4)"], tiny_data([12, 12]), splits, device="cpu")  # the same images, read again


def test_beside_one_that_diverges_the_others_are_trained_once(
    parts: tuple[cs.ImageData, cs.ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, numbers, seen = ranking._Search._look, trainings(monkeypatch), []

    def diverged(self: ranking._Search, trainer: Trainer) -> dict[str, float]:
        seen.append(trainer)
        if len(seen) == 1:
            raise cs.UserError("it diverged")
        return look(self, trainer)

    monkeypatch.setattr(ranking._Search, "_look", diverged)
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names]))
    found = cs.rank([BAD, GOOD, "mlp(width=8)"], *parts, **{**FAST, "nets": 2})
    assert numbers == [0, 0, 0, 1, 1]
    assert [row.reason for row in found.rows] == ["", "", "it diverged"]


def test_split_off_leaves_images_of_every_class_on_both_sides() -> None:
    for share in (0.01, 0.5, 0.99):
        for part in cs.split_off(tiny_data([2, 3, 40]), share):
            assert min(part.class_counts) >= 1


def test_the_seed_decides_which_images_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def split(data: cs.ImageData, *, seed: int) -> tuple[cs.ImageData, cs.ImageData]:
        seeds.append(seed)
        return cs.split_off(data, seed=seed)

    monkeypatch.setattr(ranking, "split_off", split)
    data = tiny_data([12, 12])
    small = cs.condense(tiny_data([4, 4], seed=1), "random", ipc=1, device="cpu")
    cs.rank(["mlp(width=4)"], small, cs.Splits(train=data, test=data), seed=5, epochs=0, device="cpu")
    assert seeds == [5]


def test_side_by_side_they_come_out_as_one_by_one(
    parts: tuple[cs.ImageData, cs.ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation = parts
    architectures, protocol = [GOOD, BAD, "mlp(width=8)", "convnet(depth=9)"], Protocol(nets=2, epochs=2, batch=16)
    alone = search(architectures, train, validation, protocol, Run(place=CPU), also={"test": train})
    groups: list[int] = []
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names[:3], names[3:]]))
    together = ranking.side_by_side
    monkeypatch.setattr(ranking, "side_by_side", lambda t, *more: groups.append(len(t)) or together(t, *more))
    beside = search(architectures, train, validation, protocol, Run(place=CPU), also={"test": train})
    assert groups == [3, 3]
    assert [(row.name, row.accuracy, row.also) for row in beside.rows[:3]] == [
        (row.name, row.accuracy, row.also) for row in alone.rows[:3]
    ]
    assert beside.rows[3].reason == alone.rows[3].reason


def test_a_group_with_one_that_fails_is_done_one_by_one(
    parts: tuple[cs.ImageData, cs.ImageData], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([names]))
    found = cs.rank([GOOD, "convnet(depth=9)", BAD], *parts, **FAST)
    assert [bool(row.reason) for row in found.rows] == [False, False, True]


def test_groups_are_of_specs_and_on_a_gpu_alone() -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "h"]
    named = {name: linear if name == "g" else GOOD for name in names}
    gpu = Place(torch.device("cuda"), torch.bfloat16)
    assert list(ranking._groups(names, named, gpu)) == [["a", "b", "c"], ["d", "e", "f"], ["g"], ["h"]]
    assert list(ranking._groups(names, named, CPU)) == [[name] for name in names]


def test_arguments_are_told_without_where_they_lie() -> None:
    build = functools.partial(linear, 3, act=nn.ReLU, function=torch.relu, thing=object(), text="a")
    assert builders._name(build) == "linear(3, act=ReLU, function=relu, thing=<object object>, text='a')"


def test_other_images_are_measured_but_decide_nothing(parts: tuple[cs.ImageData, cs.ImageData]) -> None:
    train, validation = parts
    protocol = Protocol(nets=1, epochs=2, batch=16)
    plain = search([GOOD, linear], train, validation, protocol, Run(place=CPU))
    looked = search([GOOD, linear], train, validation, protocol, Run(place=CPU), also={"test": tiny_data([9] * 3)})
    assert [(row.name, row.accuracy) for row in plain.rows] == [(row.name, row.accuracy) for row in looked.rows]
    assert all(0 <= row.also["test"] <= 1 for row in looked.rows)


def test_split_off_takes_a_share_of_every_class() -> None:
    data = tiny_data([20, 10, 3])
    rest, held = cs.split_off(data, 0.2, seed=5)
    assert held.class_counts == (4, 2, 1)
    assert rest.class_counts == (16, 8, 2)
    rows = {image.numpy().tobytes() for image in data.images}
    mine, theirs = ({image.numpy().tobytes() for image in part.images} for part in (rest, held))
    assert mine | theirs == rows
    assert not mine & theirs
    assert torch.equal(cs.split_off(data, 0.2, seed=5)[1].images, held.images)
    assert not torch.equal(cs.split_off(data, 0.2, seed=6)[1].images, held.images)
    assert len({data.fingerprint, rest.fingerprint, held.fingerprint}) == 3
    for share in (0, 1, -0.1, "a"):
        with pytest.raises(cs.UserError, match="share must lie between 0 and 1"):
            cs.split_off(data, share)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match="has one image"):
        cs.split_off(tiny_data([4, 1]))
