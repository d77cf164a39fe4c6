"""The architecture search: how it selects, what it compares, and how it resumes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.split import train_val_split
from condenset.errors import UserError
from condenset.experiments import ExperimentContext, ExperimentResult, get_experiment, make_request, nas
from condenset.experiments.types import Record
from condenset.io.progress import NullProgress
from condenset.networks import search_space
from condenset.runs import directory
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.protocol import Protocol
from helpers.experiment_recorder import RankCall, Recorder, make_context


def make_row(name: str, validation: float, test: float, reason: str = "") -> Record:
    return {"name": name, "accuracy": validation, "other_accuracies": {"test": test}, "reason": reason, "seconds": 60.0}


def make_nas_context(path: Path, scale: str, size: int = 8, **request_fields: Any) -> ExperimentContext:
    return make_context("nas", path, scale, size=size, counts=[24] * 3, **request_fields)


def test_spearman_of_known_values() -> None:
    assert nas.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert nas.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert nas.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5).
    assert nas.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert nas.spearman([1, 2, 3, 4], [1, 10, 11, 1000]) == pytest.approx(1)  # ranks count, not values
    assert nas.spearman([1, 1, 1], [1, 2, 3]) is None
    assert nas.spearman([], []) is None


def test_validation_selects_and_test_accuracy_is_reported() -> None:
    ranking = {
        "rows": [
            make_row("a", 0.9, 0.3),
            make_row("b", 0.8, 0.7),
            make_row("c", 0.7, 0.5),
            make_row("d", 0, 0, "broke"),
        ],
        "seconds": 9,
    }
    top = nas._top_rows(ranking, 4)
    assert [row["name"] for row in top] == ["a", "b", "c"]
    assert [row["name"] for row in nas._top_rows(ranking, 1)] == ["a"]
    whole = {"rows": [make_row("c", 0.9, 0.61), make_row("b", 0.8, 0.60), make_row("a", 0.7, 0.62)], "seconds": 180}
    record = nas._compare("dm", top, ranking, whole)
    assert (record["best"], record["accuracy"]) == ("a", 0.62)
    assert record["correlation"] == pytest.approx(-1)  # 0.3 0.7 0.5 against 0.62 0.60 0.61
    assert nas._compare("dm", top, ranking, {"rows": whole["rows"][:2], "seconds": 1})["accuracy"] is None


def test_time_of_the_whole_dataset_is_estimated_from_the_candidates() -> None:
    whole = {"rows": [make_row("c", 0.9, 0.61), make_row("b", 0.8, 0.60), make_row("a", 0.7, 0.62)], "seconds": 180}
    slow = make_row("d", 0.5, 0.5) | {"seconds": 540.0}  # three times the time of the others together
    search = {"rows": [*(make_row(name, 0.5, 0.5) for name in "abc"), slow], "seconds": 720}
    record = nas._reference_record(whole, search)
    assert (record["best"], record["accuracy"], record["correlation"]) == ("c", 0.61, 1.0)
    assert (record["seconds"], record["estimated"]) == (720, True)


def test_time_of_condensing_includes_the_networks() -> None:
    record = {"accuracy": 0.5, "correlation": 1.0, "seconds": 60.0, "images": 3, "estimated": False}
    dmplus = {**record, "method": "dmplus", "condense_seconds": 60.0, "pool_seconds": 120.0}
    table = nas._make_table([dmplus, {**record, "method": "whole", "condense_seconds": 0.0}])
    assert table.rows[3] == ("condensing, min", "3.0", "0.0")


def test_panels_show_the_rank_correlation() -> None:
    points = [{"proxy": 0.1, "whole": 0.2}]
    correlations = {"dm": 0.5, nas.EARLY_STOPPING: None}
    figure = nas._draw([{"method": m, "correlation": c, "points": points} for m, c in correlations.items()])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["dm\nrank correlation: 0.50", "early-stopping\nrank correlation: none"]


def test_request_overrides_the_scale(tmp_path: Path) -> None:
    request = {"methods": ("random", "dm"), "protocol_fields": {"num_networks": 1}, "whole_epochs": 20}
    context = make_nas_context(tmp_path, "paper", size=32, **request)
    proxy = nas._proxy_protocol(context)
    whole = nas._whole_protocol(context, proxy)
    assert (proxy.num_networks, proxy.epochs, whole.num_networks, whole.epochs) == (1, 200, 1, 20)
    assert context.methods == ("random", "dm")


def test_protocol_of_the_paper(tmp_path: Path) -> None:
    context = make_nas_context(tmp_path, "paper", size=32)
    assert nas._space(context) == search_space(32)
    proxy = nas._proxy_protocol(context)
    assert (proxy.num_networks, proxy.epochs, proxy.batch_size) == (5, 200, 250)
    assert (proxy.training_steps(500), proxy.lr_factors(500)) == (402, {202: 0.1})
    whole = nas._whole_protocol(context, proxy)
    assert (whole.num_networks, whole.epochs, whole.batch_size, whole.augment) == (5, 100, 250, proxy.augment)
    assert Protocol(steps=402, batch_size=250).lr_factors(45_000) == {201: 0.1}
    small_space = nas._space(make_nas_context(tmp_path, "small", size=32))
    assert len(small_space) == 103
    for option in ("width=32,", "depth=4", "norm='layer'", "activation='sigmoid'", "pooling='none'", "pooling='max'"):
        shares = [sum(option in spec for spec in space) / len(space) for space in (small_space, search_space(32))]
        assert shares[0] == pytest.approx(shares[1], abs=0.05)


def test_rows_and_columns_of_table_5(recorder: Recorder, rank_calls: dict[str, RankCall], tmp_path: Path) -> None:
    result = nas.run_nas(make_nas_context(tmp_path, "tiny"))
    assert result.table.columns == ("", "random", "dsa", "dm", "early-stopping", "whole dataset")
    assert [cells[0] for cells in result.table.rows] == [
        "performance, %",
        "correlation",
        "time, min",
        "condensing, min",
        "storage, images",
    ]
    assert {record["method"]: record["images"] for record in result.records} == {
        **dict.fromkeys(get_experiment("nas").methods, 6),
        nas.EARLY_STOPPING: 66,
        nas.WHOLE_TITLE: 66,
    }
    assert result.table.rows[0][-1] != "-"
    assert all(record["best"] in nas.TINY_SPACE for record in result.records)


def test_no_network_trains_on_validation_images(rank_calls: dict[str, RankCall], tmp_path: Path) -> None:
    context = make_nas_context(tmp_path, "tiny", methods=("random", "dm", "early-stopping"))
    nas.run_nas(context)
    train, val = train_val_split(context.splits.train, nas.VAL_SHARE, seed=1)
    assert {call.val.fingerprint for call in rank_calls.values()} == {val.fingerprint}
    for description in ("early stopping search", "whole search"):
        train_set = rank_calls[description].train_set
        assert isinstance(train_set, ImageData) and train_set.fingerprint == train.fingerprint
    for method in context.methods:
        train_set = rank_calls[f"{method} search"].train_set
        assert isinstance(train_set, CondensedSet) and train_set.provenance["fingerprint"] == train.fingerprint
    proxy, early = (rank_calls[name].protocol for name in ("dm search", "early stopping search"))
    assert early == dataclasses.replace(proxy, steps=proxy.training_steps(6))  # as many steps as on six images


@pytest.mark.usefixtures("rank_calls")
def test_early_stopping_can_be_left_out(tmp_path: Path) -> None:
    result = nas.run_nas(make_nas_context(tmp_path, "tiny", methods=("random",)))
    assert result.table.columns == ("", "random", "whole dataset")
    with pytest.raises(UserError, match="needs a method that makes sets"):
        make_nas_context(tmp_path, "tiny", methods=(nas.EARLY_STOPPING,))
    with pytest.raises(UserError, match="a method of this experiment"):
        make_request(get_experiment("sota"), methods=(nas.EARLY_STOPPING,))


class StopInTask(NullProgress):
    """Stop the run in the second architecture of the task with this description."""

    def __init__(self, run: RunContext, description: str) -> None:
        self.run, self.description = run, description

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        self.current = description

    def update(self, done: float, note: str = "") -> None:
        self.run.stop.requested = int(self.current == self.description and done > 1)


def test_interrupted_search_resumes_to_the_same_result(tmp_path: Path) -> None:
    def run_search(context: ExperimentContext) -> list[object]:
        result: ExperimentResult = nas.run_nas(context)
        return [
            (record["best"], record["accuracy"], record["correlation"], record["points"]) for record in result.records
        ]

    undisturbed = run_search(make_nas_context(tmp_path / "undisturbed", "tiny", methods=("random", "early-stopping")))
    context = make_nas_context(tmp_path / "stopped", "tiny", methods=("random", "early-stopping"))
    context.run.progress = StopInTask(context.run, "early stopping search")
    with pytest.raises(Interrupted):
        run_search(context)
    part = tmp_path / "stopped/parts/early-stopping-search"
    assert len((part / "events.jsonl").read_text().splitlines()) == 1
    assert (part / directory.RANKING_CHECKPOINT).exists()
    assert not (part / "record.json").exists()
    assert (
        run_search(make_nas_context(tmp_path / "stopped", "tiny", methods=("random", "early-stopping"))) == undisturbed
    )
