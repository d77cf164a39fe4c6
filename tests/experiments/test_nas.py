"""The architecture search: how it chooses, what it compares, and what it does after a stop."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from condenset import folders
from condenset.data.validation import split_off
from condenset.engine import Place
from condenset.errors import UserError
from condenset.experiments import find, nas, wishes_for
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome
from condenset.networks import search_space
from condenset.recipes import Protocol
from condenset.runs import Interrupted, Run, Silent
from condenset.types import ImageData, Splits
from plain import tiny_data


def row(name: str, validation: float, test: float, reason: str = "") -> nas.Record:
    return {"name": name, "accuracy": validation, "also": {"test": test}, "reason": reason, "seconds": 60.0}


def test_spearman_by_hand() -> None:
    assert nas.spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert nas.spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert nas.spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: 4.5 / sqrt(4.5 * 5)
    assert nas.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert nas.spearman([1, 2, 3, 4], [1, 10, 11, 1000]) == pytest.approx(1)  # of ranks, not of values
    assert nas.spearman([1, 1, 1], [1, 2, 3]) is None
    assert nas.spearman([], []) is None


def test_the_choice_is_the_validations_and_the_worth_the_tests() -> None:
    found = {
        "rows": [row("a", 0.9, 0.3), row("b", 0.8, 0.7), row("c", 0.7, 0.5), row("d", 0, 0, "broke")],
        "seconds": 9,
    }
    top = nas._top(found, 4)
    assert [each["name"] for each in top] == ["a", "b", "c"]
    assert [each["name"] for each in nas._top(found, 1)] == ["a"]
    whole = {"rows": [row("c", 0.9, 0.61), row("b", 0.8, 0.60), row("a", 0.7, 0.62)], "seconds": 180}
    record = nas._compared("dm", top, found, whole)
    assert (record["best"], record["accuracy"]) == ("a", 0.62)
    assert record["correlation"] == pytest.approx(-1)  # 0.3 0.7 0.5 against 0.62 0.60 0.61
    assert nas._compared("dm", top, found, {"rows": whole["rows"][:2], "seconds": 1})["accuracy"] is None
    slow = row("d", 0.5, 0.5) | {"seconds": 540.0}  # three times as long as the others together
    early = {"rows": [*(row(name, 0.5, 0.5) for name in "abc"), slow], "seconds": 720}
    reference = nas._reference(whole, early)
    assert (reference["best"], reference["accuracy"], reference["correlation"]) == ("c", 0.61, 1.0)
    assert (reference["seconds"], reference["estimated"]) == (720, True)


def test_panels_say_what_their_number_is() -> None:
    points = [{"proxy": 0.1, "whole": 0.2}]
    correlations = {"dm": 0.5, nas.EARLY: None}
    figure = nas._draw([{"method": m, "correlation": c, "points": points} for m, c in correlations.items()])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["dm\nrank correlation: 0.50", "early-stopping\nrank correlation: none"]


def lab(folder: Path, scale: str, size: int = 8, **wished: Any) -> Lab:
    splits = Splits(train=tiny_data([24] * 3, size=size), test=tiny_data([8] * 3, size=size))
    run = Run(seed=1, place=Place.best("cpu"), folder=folder)
    wishes = wishes_for(find("nas"), **wished)
    return Lab(dataset="tiny", scale=scale, wishes=wishes, splits=splits, run=run, folder=folder)


def test_what_was_wished_wins_over_the_scale(tmp_path: Path) -> None:
    cut = lab(tmp_path, "paper", size=32, methods=("random", "dm"), protocol={"nets": 1}, whole_epochs=20)
    proxy = nas._proxy_protocol(cut)
    whole = nas._whole_protocol(cut, proxy)
    assert (proxy.nets, proxy.epochs, whole.nets, whole.epochs) == (1, 200, 1, 20)
    assert cut.methods == ("random", "dm")


def test_the_papers_protocol(tmp_path: Path) -> None:
    full = lab(tmp_path, "paper", size=32)
    assert nas._space(full) == search_space(32)
    proxy = nas._proxy_protocol(full)
    assert (proxy.nets, proxy.epochs, proxy.batch) == (5, 200, 250)
    assert proxy.length(500) == (402, 202)
    whole = nas._whole_protocol(full, proxy)
    assert (whole.nets, whole.epochs, whole.batch, whole.augment) == (5, 100, 250, proxy.augment)
    assert Protocol(steps=402, batch=250).length(45_000) == (402, 201)
    part = nas._space(lab(tmp_path, "small", size=32))
    assert len(part) == 103
    for option in ("width=32,", "depth=4", "norm='layer'", "activation='sigmoid'", "pooling='none'", "pooling='max'"):
        share = [sum(option in spec for spec in space) / len(space) for space in (part, search_space(32))]
        assert share[0] == pytest.approx(share[1], abs=0.05)


def test_table_5s_rows_and_columns(tmp_path: Path) -> None:
    outcome = nas.search_architectures(lab(tmp_path, "tiny"))
    assert outcome.table.columns == ("", "random", "dsa", "dm", "early-stopping", "whole dataset")
    assert [cells[0] for cells in outcome.table.rows] == [
        "performance, %",
        "correlation",
        "time, min",
        "condensing, min",
        "storage, images",
    ]
    by = {record["method"]: record for record in outcome.records}
    assert {method: by[method]["images"] for method in by} == {
        **dict.fromkeys(find("nas").methods, 6),
        nas.EARLY: 66,
        nas.WHOLE: 66,
    }
    assert outcome.table.rows[0][-1] != "-"
    assert all(record["best"] in nas.TINY_SPACE for record in outcome.records)


def test_validation_images_are_trained_on_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, searched = lab(tmp_path, "tiny", methods=("random", "dm", "early-stopping")), {}
    real = nas._searched

    def look(lab: Lab, name: str, space: Any, small: Any, validation: ImageData, protocol: Protocol) -> nas.Record:
        searched[name] = small, validation, protocol
        return real(lab, name, space, small, validation, protocol)

    monkeypatch.setattr(nas, "_searched", look)
    nas.search_architectures(tiny)
    train, validation = split_off(tiny.splits.train, nas.VALIDATION, seed=1)
    assert {each.fingerprint for _, each, _ in searched.values()} == {validation.fingerprint}
    for name in ("early-stopping-search", "whole-search"):
        assert searched[name][0].fingerprint == train.fingerprint
    for method in tiny.methods:
        assert searched[f"{method}-search"][0].provenance["fingerprint"] == train.fingerprint
    proxy, early = (searched[name][2] for name in ("dm-search", "early-stopping-search"))
    assert early == dataclasses.replace(proxy, steps=proxy.length(6)[0])  # as many steps as on the proxy's six images


def test_early_stopping_is_left_out_unless_named(tmp_path: Path) -> None:
    outcome = nas.search_architectures(lab(tmp_path, "tiny", methods=("random",)))
    assert outcome.table.columns == ("", "random", "whole dataset")
    with pytest.raises(UserError, match="needs a method that makes sets"):
        lab(tmp_path, "tiny", methods=(nas.EARLY,))
    with pytest.raises(UserError, match="a method of this experiment"):
        wishes_for(find("sota"), methods=(nas.EARLY,))


class StopIn(Silent):
    """Asks the run to stop within a loop of this name, in its second architecture."""

    def __init__(self, run: Run, text: str) -> None:
        self.run, self.text = run, text

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.current = text

    def update(self, done: float, note: str = "") -> None:
        self.run.stop_requested = int(self.current == self.text and done > 1)


def test_stopped_within_a_search_it_goes_on_to_the_same_outcome(tmp_path: Path) -> None:
    def told(outcome: Outcome) -> list[object]:
        return [(each["best"], each["accuracy"], each["correlation"], each["points"]) for each in outcome.records]

    undisturbed = nas.search_architectures(lab(tmp_path / "whole", "tiny"))
    text = "early stopping search"
    stopping = lab(tmp_path / "stopped", "tiny")
    stopping.run.progress = StopIn(stopping.run, text)
    with pytest.raises(Interrupted):
        nas.search_architectures(stopping)
    part = tmp_path / "stopped/parts" / text.replace(" ", "-")
    assert len((part / "events.jsonl").read_text().splitlines()) == 1
    assert (part / folders.HALF_RANKED).exists()
    assert not (part / "record.json").exists()
    assert told(nas.search_architectures(lab(tmp_path / "stopped", "tiny"))) == told(undisturbed)
