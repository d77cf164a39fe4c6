"""Class-incremental learning: what is tested after each step, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import CondensedSet, ImageData, Scores
from condenset.engine import Place
from condenset.experiments import common, find, perform, wishes_for
from condenset.experiments.continual import _draw, average, final
from condenset.experiments.outcomes import Record
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run
from condenset.types import Splits
from plain import StopAtLoop, tiny_data

METHODS = ("random", "herding", "dm")
SPLITS = Splits(train=tiny_data([6, 6, 6, 6, 6]), test=tiny_data([2, 3, 4, 5, 6], seed=1))


@pytest.fixture(autouse=True)
def tiniest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.experiments.save_chart", lambda figure, path: None)
    monkeypatch.setitem(common.RECIPES_AT, "tiny", common.RECIPES_AT["tiny"] | {"iterations": 2, "batch": 4})
    monkeypatch.setitem(common.PROTOCOLS_AT, "tiny", common.PROTOCOLS_AT["tiny"] | {"epochs": 1})


def go(folder: Path, run: Run | None = None, methods: tuple[str, ...] = METHODS) -> list[Record]:
    run = run or Run(seed=1, place=Place.best("cpu"))
    wishes = wishes_for(find("continual"), methods=methods)
    perform("continual", SPLITS, run, folder, dataset="tiny", scale="tiny", wishes=wishes)
    found: list[Record] = json.loads((folder / "results.json").read_text())
    return found


def test_after_every_step_the_classes_seen_are_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested: dict[str, tuple[CondensedSet, ImageData, int]] = {}

    def look(small: CondensedSet, test: ImageData, protocol: Any, run: Run, text: str) -> Scores:
        tested[run.job] = small, test, run.seed
        return Scores(accuracies=(0.5, 0.7), network="none")

    monkeypatch.setattr(common, "score", look)
    records = go(tmp_path)
    assert len(records) == len(tested) == len(METHODS) * (2 + 5)
    for record in records:
        small, test, seed = tested[f"{record['method']}-{record['steps']}-{record['order']}-{record['step']}"]
        assert seed != 1 and small.provenance["seed"] == seed
        earlier = [r for r in records if (r["method"], r["steps"]) == (record["method"], record["steps"])]
        seen = [name for r in earlier if r["step"] <= record["step"] for name in r["classes"]]
        assert small.class_names == test.class_names == tuple(seen)
        assert len(small) == 2 * len(seen) and record["classes_seen"] == len(seen)
        assert len(test) == sum(SPLITS.test.class_counts[int(name.split()[1])] for name in seen)
        for place, name in enumerate(seen):
            mine = SPLITS.test.images[SPLITS.test.labels == int(name.split()[1])]
            assert torch.equal(test.images[test.labels == place], mine)
    assert [len(r["classes"]) for r in records if r["method"] == "dm"] == [3, 2, 1, 1, 1, 1, 1]
    for method in METHODS:  # the order of classes is the same, but 2 and 5 steps are two measurements
        last = [tested[f"{method}-{steps}-0-{steps}"][0] for steps in (2, 5)]
        assert last[0].class_names == last[1].class_names == tested["dm-2-0-2"][0].class_names
    assert not torch.equal(*(tested[f"random-{steps}-0-{steps}"][0].images for steps in (2, 5)))


def test_the_seed_decides_the_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(small: CondensedSet, test: ImageData, protocol: Protocol, run: Run, text: str) -> Scores:
        assert protocol.nets == 2  # networks an order, whatever a score has
        return Scores(accuracies=(0.5, 0.7), network="none")

    monkeypatch.setattr(common, "score", look)
    monkeypatch.setitem(common.PROTOCOLS_AT, "tiny", common.PROTOCOLS_AT["tiny"] | {"nets": 5})
    orders = set()
    for seed in range(4):
        run = Run(seed=seed, place=Place.best("cpu"))
        records = go(tmp_path / str(seed), run, ("random",))
        orders.add(tuple(name for record in records for name in record["classes"]))
    assert len(orders) > 1


def test_stopped_and_gone_on_with_it_comes_out_the_same(tmp_path: Path) -> None:
    methods = ("herding", "dm")
    undisturbed = go(tmp_path / "whole", methods=methods)
    run = Run(seed=1, place=Place.best("cpu"))
    run.progress = StopAtLoop(run, 29)  # while dm's memory is tested
    with pytest.raises(Interrupted):
        go(tmp_path / "stopped", run, methods)
    assert run.seed == 1
    again = go(tmp_path / "stopped", methods=methods)
    assert [r["accuracies"] for r in again] == [r["accuracies"] for r in undisturbed]


def test_ticks_are_the_numbers_of_classes() -> None:
    record = {"method": "dm", "steps": 2, "accuracies": [0.5]}
    figure = _draw([{**record, "classes_seen": 3}, {**record, "classes_seen": 5}], [2])
    assert list(figure.axes[0].get_xticks()) == [3, 5]


def test_final_and_average_are_over_orders_and_networks() -> None:
    values = {(0, 1): [0.8, 0.6], (0, 2): [0.4, 0.4], (1, 1): [1.0, 1.0], (1, 2): [0.2, 0.6]}
    records = [{"order": order, "step": step, "accuracies": each} for (order, step), each in values.items()]
    assert final(records)["accuracy_mean"] == pytest.approx(0.4)
    assert final(records)["accuracy_std"] == pytest.approx(0.02**0.5)
    assert average(records)["accuracy_mean"] == pytest.approx((0.6 + 0.5 + 0.6 + 0.8) / 4)
