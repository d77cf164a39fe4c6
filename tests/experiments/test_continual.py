"""Class-incremental learning: what is tested after each step, and how it is summarised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from condenset import CondensedSet, ImageData, Scores
from condenset.data.image_data import Splits
from condenset.experiments import context, scales
from condenset.experiments.continual import _draw, average_accuracy, final_accuracy
from condenset.experiments.types import Record
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.protocol import Protocol
from helpers.experiment_runs import make_run, run_tiny
from helpers.interruption import StopAtLoop
from helpers.reference_dm import tiny_data

pytestmark = pytest.mark.usefixtures("fast_tiny")

METHODS = ("random", "herding", "dm")
SPLITS = Splits(train=tiny_data([6, 6, 6, 6, 6]), test=tiny_data([2, 3, 4, 5, 6], seed=1))


def run_continual(directory: Path, run: RunContext | None = None, methods: tuple[str, ...] = METHODS) -> list[Record]:
    """Run the experiment and return the records in results.json."""
    run_tiny("continual", SPLITS, directory, run, methods=methods)
    records: list[Record] = json.loads((directory / "results.json").read_text())
    return records


def test_all_classes_so_far_are_tested_after_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, tuple[CondensedSet, ImageData, int]] = {}

    def score_set(memory: CondensedSet, test_set: ImageData, protocol: Protocol, run: RunContext, _: str) -> Scores:
        calls[run.job] = memory, test_set, run.seed
        return Scores(accuracies=(0.5, 0.7), network="none")

    monkeypatch.setattr(context, "score_set", score_set)
    records = run_continual(tmp_path)
    assert len(records) == len(calls) == len(METHODS) * (2 + 5)
    for record in records:
        memory, test_set, seed = calls[f"{record['method']}-{record['steps']}-{record['order']}-{record['step']}"]
        assert seed != 1 and memory.provenance["seed"] == seed
        stream = [r for r in records if (r["method"], r["steps"]) == (record["method"], record["steps"])]
        class_names = [name for r in stream if r["step"] <= record["step"] for name in r["classes"]]
        assert memory.class_names == test_set.class_names == tuple(class_names)
        assert len(memory) == 2 * len(class_names) and record["classes_seen"] == len(class_names)
        assert len(test_set) == sum(SPLITS.test.class_counts[int(name.split()[1])] for name in class_names)
        for label, name in enumerate(class_names):
            images = SPLITS.test.images[SPLITS.test.labels == int(name.split()[1])]
            assert torch.equal(test_set.images[test_set.labels == label], images)
    assert [len(r["classes"]) for r in records if r["method"] == "dm"] == [3, 2, 1, 1, 1, 1, 1]
    for method in METHODS:  # the order of classes is the same, but 2 and 5 steps are two measurements
        last = [calls[f"{method}-{steps}-0-{steps}"][0] for steps in (2, 5)]
        assert last[0].class_names == last[1].class_names == calls["dm-2-0-2"][0].class_names
    assert not torch.equal(*(calls[f"random-{steps}-0-{steps}"][0].images for steps in (2, 5)))


def test_seed_decides_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def score_set(memory: object, test_set: object, protocol: Protocol, run: RunContext, _: str) -> Scores:
        assert protocol.num_networks == 2  # per order, whatever other experiments use
        return Scores(accuracies=(0.5, 0.7), network="none")

    monkeypatch.setattr(context, "score_set", score_set)
    monkeypatch.setitem(scales.PROTOCOL_FIELDS["tiny"], "num_networks", 5)
    orders = set()
    for seed in range(4):
        run = make_run(tmp_path / str(seed))
        run.seed = seed
        records = run_continual(tmp_path / str(seed), run, ("random",))
        orders.add(tuple(name for record in records for name in record["classes"]))
    assert len(orders) > 1


def test_interrupted_experiment_resumes_to_the_same_result(tmp_path: Path) -> None:
    methods = ("herding", "dm")
    undisturbed = run_continual(tmp_path / "undisturbed", methods=methods)
    run = make_run(tmp_path / "stopped")
    run.progress = StopAtLoop(run, 29)  # while the memory of dm is tested
    with pytest.raises(Interrupted):
        run_continual(tmp_path / "stopped", run, methods)
    assert run.seed == 1
    resumed = run_continual(tmp_path / "stopped", methods=methods)
    assert [record["accuracies"] for record in resumed] == [record["accuracies"] for record in undisturbed]


def test_ticks_are_the_numbers_of_classes() -> None:
    record = {"method": "dm", "steps": 2, "accuracies": [0.5]}
    figure = _draw([{**record, "classes_seen": 3}, {**record, "classes_seen": 5}], [2])
    assert list(figure.axes[0].get_xticks()) == [3, 5]


def test_final_and_average_accuracy_are_over_orders_and_networks() -> None:
    values = {(0, 1): [0.8, 0.6], (0, 2): [0.4, 0.4], (1, 1): [1.0, 1.0], (1, 2): [0.2, 0.6]}
    records = [{"order": order, "step": step, "accuracies": value} for (order, step), value in values.items()]
    assert final_accuracy(records)["accuracy_mean"] == pytest.approx(0.4)
    assert final_accuracy(records)["accuracy_std"] == pytest.approx(0.02**0.5)
    assert average_accuracy(records)["accuracy_mean"] == pytest.approx((0.6 + 0.5 + 0.6 + 0.8) / 4)
