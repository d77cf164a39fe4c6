"""How much the scales `small` and `paper` ask for, as docs/guide.md tells it; nothing of it is done."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from watched import Asked, Filled, Search, lab, outcome_of

from condenset.estimates import Work
from condenset.experiments import EXPERIMENTS
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome
from condenset.types import ImageData
from plain import tiny_data

SCALES = ("small", "paper")


class Wanted(NamedTuple):
    ipcs: list[int]
    sets: int
    scoring: tuple[int, int] | None  # networks, and the epochs of each
    whole: int | None = None  # epochs on the whole dataset


SMALL, PAPER = (3, 300), (20, 1000)
WANTED = {
    "sota": (Wanted([1, 10], 1, SMALL, 100), Wanted([1, 10, 50], 5, PAPER, 200)),
    "batchnorm": (Wanted([50], 1, SMALL), Wanted([50], 5, PAPER)),
    "architectures": (Wanted([50], 1, SMALL), Wanted([50], 5, PAPER)),
    "networks": (Wanted([10], 1, SMALL), Wanted([1, 10, 50], 5, PAPER)),
    "sizes": (Wanted([100, 200, 500], 1, SMALL, 100), Wanted([100, 200, 500, 1000, 1250], 5, PAPER, 200)),
    "cost": (Wanted([50], 1, SMALL), Wanted([50], 1, PAPER)),
    "continual": (Wanted([20], 1, SMALL), Wanted([20], 1, (3, 1000))),
    "nas": (Wanted([50], 1, None), Wanted([50], 1, None)),
    "distribution": (Wanted([50], 1, None), Wanted([50], 1, None)),
}


def ask(name: str, folder: Path, scale: str, **wished: Any) -> Outcome:
    """The experiment on images enough for it."""
    size = 32 if name in ("architectures", "nas") else 16
    return outcome_of(name, lab(name, folder, scale, size=size, counts=counts_for(name), sets=None, **wished))


def counts_for(name: str) -> list[int]:
    return {"sizes": [1250] * 2, "continual": [20] * 10}.get(name, [60] * 3)


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most real images a class that each map was to show; none is made."""
    found: list[int] = []

    def some(data: ImageData, most: int, seed: int) -> tuple[Tensor, Tensor]:
        found.append(most)
        return torch.arange(len(data)), data.labels

    class Network:
        def features(self, data: object, places_N: Tensor) -> Tensor:
            return torch.zeros(len(places_N), 2)

    module = importlib.import_module("condenset.experiments.distribution")  # the package has a function of this name
    monkeypatch.setattr(module, "_some", some)
    monkeypatch.setattr(module, "trained", lambda *_: Network())
    monkeypatch.setattr(module, "tsne", lambda features_NF, seed: features_NF)
    return found


@pytest.mark.usefixtures("filled", "mapped")
@pytest.mark.parametrize("name", [name for name, wanted in WANTED.items() if name != "nas"])
def test_what_is_foretold_is_what_is_done(
    name: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foretold: dict[str, Work] = {}
    monkeypatch.setattr(Lab, "expect", lambda self, parts: foretold.update(parts))
    ask(name, tmp_path, "paper")
    made = {part: work.recipe for part, work in foretold.items() if work.recipe and part != "map"}
    assert made == {part: each.recipe for part, each in asked.made.items()}
    scored = {part: (work.protocol, work.num) for part, work in foretold.items() if work.protocol and part != "pool"}
    assert scored == {part: (each.protocol, len(each.small)) for part, each in asked.scored.items()}
    assert foretold.keys() - made.keys() - scored.keys() <= {"pool", "map"}
    share = {part: foretold[part].share * sum(counts_for(name)) for part in made}
    assert share == pytest.approx({part: len(asked.made[part].data) for part in made})
    apart = 5 * (5 + 10) if name == "continual" else WANTED[name][1].sets  # each step of an order has its own images
    assert len({foretold[part].seed for part in made}) == apart


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("scale", SCALES)
def test_the_search_that_is_foretold_is_what_is_done(
    scale: str, searched: dict[str, Search], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foretold: dict[str, Work] = {}
    monkeypatch.setattr(Lab, "expect", lambda self, parts: foretold.update(parts))
    ask("nas", tmp_path, scale, methods=("random", "dm", "early-stopping"))
    whole = foretold.pop("whole-search")
    done = {name.replace(" ", "-"): (each.protocol, list(each.space)) for name, each in searched.items()}
    assert whole.protocol == done.pop("whole-search")[0]
    top = len(searched["whole search"].space)  # of each of three searches, which rank alike here
    assert whole.left * len(whole.networks) == pytest.approx(3 * top)
    searches = {name: work for name, work in foretold.items() if work.protocol}
    assert {name: (work.protocol, list(work.networks)) for name, work in searches.items()} == done
    assert {name: work.num for name, work in searches.items()} == dict(
        zip(searches, (150, 150, 162), strict=True)  # a tenth is held out
    )


@pytest.mark.usefixtures("asked")
def test_the_pool_is_foretold_before_it_is_trained(
    filled: list[Filled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foretold: list[dict[str, Work]] = []
    monkeypatch.setattr(Lab, "expect", lambda self, parts: foretold.append(dict(parts)))
    ask("networks", tmp_path, "paper", ipcs=(1,))
    before, after = foretold
    assert before == after  # of this pool every group has networks
    assert before["pool"].left == 1
    assert before["pool"].protocol == dataclasses.replace(filled[0].protocol, nets=filled[0].num)


@pytest.mark.usefixtures("searched", "filled", "mapped")
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name, experiment in EXPERIMENTS.items() if experiment.perform])
def test_what_a_scale_asks_for(name: str, scale: str, asked: Asked, tmp_path: Path) -> None:
    outcome, wanted = ask(name, tmp_path, scale), WANTED[name][SCALES.index(scale)]
    assert sorted({made.recipe.ipc for made in asked.made.values()}) == wanted.ipcs
    assert outcome.ipcs == tuple(wanted.ipcs) and outcome.shown == ((10,) if name == "networks" else ())
    ends = {part.partition("-set")[2] for part in asked.made}
    assert ends == {"", *(str(number) for number in range(2, wanted.sets + 1))}
    scoring = {part == "whole": (protocol.nets, protocol.epochs) for part, (_, protocol) in asked.scored.items()}
    assert scoring.get(False) == wanted.scoring
    assert scoring.get(True) == (wanted.scoring and wanted.whole and (wanted.scoring[0], wanted.whole))


@pytest.mark.parametrize(("scale", "points"), [("small", 6), ("paper", 10)])
def test_points_of_the_cost(scale: str, points: int, asked: Asked, tmp_path: Path) -> None:
    ask("cost", tmp_path, scale)
    assert {name: len(made.snapshots) for name, made in asked.made.items()} == {"dsa-50": points, "dm-50": points}
    assert len(asked.scored) == 2 * points


@pytest.mark.parametrize(("scale", "orders"), [("small", 2), ("paper", 5)])
def test_orders_and_steps_of_class_incremental_learning(scale: str, orders: int, asked: Asked, tmp_path: Path) -> None:
    ask("continual", tmp_path, scale, methods=("random",))
    assert list(asked.scored) == [
        f"random-{steps}-{order}-{step + 1}" for steps in (5, 10) for order in range(orders) for step in range(steps)
    ]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("scale", "num", "epochs"), [("small", 20, 20), ("paper", 1000, 30)])
def test_networks_of_the_pool(scale: str, num: int, epochs: int, filled: list[Filled], tmp_path: Path) -> None:
    ask("networks", tmp_path, scale, ipcs=(1,))
    assert [(each.num, each.protocol.epochs) for each in filled] == [(num, epochs)]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("scale", "space", "nets", "top", "epochs"), [("small", 103, 1, 10, 20), ("paper", 720, 5, 36, 100)]
)
def test_architectures_and_trainings_of_the_search(
    scale: str, space: int, nets: int, top: int, epochs: int, searched: dict[str, Search], tmp_path: Path
) -> None:
    ask("nas", tmp_path, scale)
    whole = searched.pop("whole search")
    assert {len(each.space) for each in searched.values()} == {space}
    assert {(each.protocol.nets, each.protocol.epochs) for each in searched.values()} == {(nets, 200)}
    assert whole.space == searched["dm search"].space[:top]  # all rank it alike
    assert (whole.protocol.nets, whole.protocol.epochs) == (nets, epochs)


@pytest.mark.usefixtures("asked")
def test_real_images_of_the_map(mapped: list[int], tmp_path: Path) -> None:
    for scale in SCALES:
        ask("distribution", tmp_path / scale, scale)
    assert mapped == [500, 5000]


def test_steps_of_learning(tmp_path: Path) -> None:
    small, paper = (lab("sota", tmp_path, scale) for scale in SCALES)
    assert [each.recipe("dm", 10).iterations for each in (small, paper)] == [2000, 20_000]  # type: ignore[attr-defined]
    digits = dataclasses.replace(tiny_data([2, 2], channels=1, size=8), name="digits")  # whose presets are short
    for method, num in (("dm", 500), ("ld", 300)):
        found = [each.recipe(method, 10, digits).iterations for each in (small, paper)]  # type: ignore[attr-defined]
        assert found == [num, num]
