from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from watched import Asked, Filled, Made, Scored, Search, pool_in, ranking_of

import condenset as cs
from condenset.experiments import common, nas, pooled
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Record
from condenset.methods.pools import Pool
from condenset.ranking import Ranking
from condenset.recipes import Protocol, Recipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData, Splits
from plain import tiny_data


@pytest.fixture
def splits() -> Splits:
    return Splits(train=tiny_data([24, 24, 24]), test=tiny_data([8, 8, 8]))


@pytest.fixture
def tiniest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale `tiny`, made smaller yet."""
    monkeypatch.setitem(common.RECIPES_AT, "tiny", common.RECIPES_AT["tiny"] | {"iterations": 2, "batch": 8})
    monkeypatch.setitem(common.PROTOCOLS_AT, "tiny", common.PROTOCOLS_AT["tiny"] | {"epochs": 1})
    monkeypatch.setitem(common.WHOLE_EPOCHS_AT, "tiny", 1)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Sets are random images, each part's its own, with its name; every accuracy is another."""
    found = Asked({}, {})

    @functools.cache
    def drawn(name: str, data: ImageData, ipc: int, seconds: float) -> CondensedSet:
        small = cs.condense(data, "random", ipc=ipc, seed=sum(name.encode()), device="cpu")
        return dataclasses.replace(small, provenance={**small.provenance, "name": name, "seconds": seconds})

    def condensed(
        self: Lab, name: str, method: str, recipe: Recipe, data: ImageData | None = None, **more: Any
    ) -> CondensedSet:
        found.made[name] = Made(recipe, data or self.splits.train, list(more.get("snapshots", ())))
        return drawn(name, data or self.splits.train, recipe.ipc, 1.0)

    def snapshot(self: Lab, name: str, step: int) -> CondensedSet:
        return drawn(f"{name}@{step}", self.splits.train, found.made[name].recipe.ipc, float(step))

    def scored(self: Lab, name: str, small: CondensedSet | ImageData, protocol: Protocol, test: Any = None) -> Record:
        found.scored[name] = Scored(small, protocol)
        mean = len(found.scored) / 1000
        accuracies = [mean - 0.001, mean + 0.001]
        return {"accuracies": accuracies, "accuracy_mean": mean, "accuracy_std": 0.001, "seconds": 1.0}

    monkeypatch.setattr(Lab, "condensed", condensed)
    monkeypatch.setattr(Lab, "snapshot", snapshot)
    monkeypatch.setattr(Lab, "scored", scored)
    return found


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Search]:
    """What is asked of every search; nothing is trained, and architectures are ranked as they come."""
    found: dict[str, Search] = {}

    def search(
        space: Sequence[str],
        small: CondensedSet | ImageData,
        validation: ImageData,
        protocol: Protocol,
        run: Run,
        *,
        also: Mapping[str, ImageData],
        text: str,
    ) -> Ranking:
        found[text] = Search(space, small, validation, protocol, also)
        return ranking_of(space, len(found))

    monkeypatch.setattr(nas, "search", search)
    return found


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[Filled]:
    """What is asked of the pools of networks; nothing is trained, and every group has states."""
    found: list[Filled] = []

    def fill(data: ImageData, folder: Path, num: int, protocol: Protocol, *_: object) -> Pool:
        found.append(Filled(num, protocol))
        return pool_in(folder)

    monkeypatch.setattr(pooled, "fill_pool", fill)
    monkeypatch.setattr(Pool, "load", lambda folder: pool_in(Path(folder)))
    return found
