from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits
from condenset.engine import ComputeDevice
from condenset.experiments import ExperimentContext, nas, network_groups
from condenset.experiments.types import Record
from condenset.methods import METHODS, Recipe
from condenset.methods.coresets.random import RandomRecipe
from condenset.methods.pools.pool import NetworkPool
from condenset.runs.context import RunContext
from condenset.search.ranking import Ranking
from condenset.training.protocol import Protocol
from helpers.experiment_recorder import (
    CondenseCall,
    PoolCall,
    RankCall,
    Recorder,
    ScoreCall,
    fake_pool,
    fake_ranking,
)
from helpers.reference_dm import tiny_data


@pytest.fixture
def splits() -> Splits:
    return Splits(train=tiny_data([24, 24, 24]), test=tiny_data([8, 8, 8]))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Replace condensing by a different random set per part, with the part's name in its provenance.

    The mean accuracy of the n-th scored part is n / 1000.
    """
    calls = Recorder({}, {})

    @functools.cache
    def random_set(name: str, data: ImageData, ipc: int, seconds: float) -> CondensedSet:
        run = RunContext(seed=sum(name.encode()), compute=ComputeDevice.select("cpu"))
        condensed = METHODS["random"].condense(data, RandomRecipe(ipc=ipc), run)
        return dataclasses.replace(condensed, provenance={**condensed.provenance, "name": name, "seconds": seconds})

    def condense(
        self: ExperimentContext, name: str, method: str, recipe: Recipe, data: ImageData | None = None, **options: Any
    ) -> CondensedSet:
        data = data or self.splits.train
        calls.condensed[name] = CondenseCall(recipe, data, list(options.get("exact_steps", ())))
        return random_set(name, data, recipe.ipc, 1.0)

    def load_exact_set(self: ExperimentContext, name: str, step: int) -> CondensedSet:
        return random_set(f"{name}@{step}", self.splits.train, calls.condensed[name].recipe.ipc, float(step))

    def score(
        self: ExperimentContext, name: str, train_set: CondensedSet | ImageData, protocol: Protocol, _: object = None
    ) -> Record:
        calls.scored[name] = ScoreCall(train_set, protocol)
        mean = len(calls.scored) / 1000
        accuracies = [mean - 0.001, mean + 0.001]
        return {"accuracies": accuracies, "accuracy_mean": mean, "accuracy_std": 0.001, "seconds": 1.0}

    monkeypatch.setattr(ExperimentContext, "condense", condense)
    monkeypatch.setattr(ExperimentContext, "load_exact_set", load_exact_set)
    monkeypatch.setattr(ExperimentContext, "score", score)
    return calls


@pytest.fixture
def rank_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, RankCall]:
    """Record the rankings by description instead of training; architectures are ranked in the order of the space."""
    calls: dict[str, RankCall] = {}

    def rank_architectures(
        space: Sequence[str],
        train_set: CondensedSet | ImageData,
        val: ImageData,
        protocol: Protocol,
        run: RunContext,
        *,
        other_sets: Mapping[str, ImageData],
        description: str,
    ) -> Ranking:
        calls[description] = RankCall(space, train_set, val, protocol, other_sets)
        return fake_ranking(space, len(calls))

    monkeypatch.setattr(nas, "rank_architectures", rank_architectures)
    return calls


@pytest.fixture
def pool_calls(monkeypatch: pytest.MonkeyPatch) -> list[PoolCall]:
    """Record the pools instead of training them; every group has networks."""
    calls: list[PoolCall] = []

    def fill_pool(
        data: ImageData, directory: Path, num: int, protocol: Protocol, *_: object, **__: object
    ) -> NetworkPool:
        calls.append(PoolCall(num, protocol))
        return fake_pool(directory)

    monkeypatch.setattr(network_groups, "fill_pool", fill_pool)
    monkeypatch.setattr(NetworkPool, "load", lambda directory: fake_pool(Path(directory)))
    return calls
