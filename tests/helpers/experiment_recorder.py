"""Record what an experiment condenses, scores, ranks and trains, instead of doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits
from condenset.engine import ComputeDevice
from condenset.experiments import ExperimentContext, ExperimentResult, get_experiment, make_request, registry
from condenset.methods import Recipe
from condenset.methods.pools.accuracy_groups import EDGES
from condenset.methods.pools.pool import NetworkPool, PoolState
from condenset.runs.context import RunContext
from condenset.search.ranking import RankedArchitecture, Ranking
from condenset.training.protocol import Protocol
from helpers.reference_dm import tiny_data


class CondenseCall(NamedTuple):
    recipe: Recipe
    data: ImageData
    exact_steps: list[int]


class ScoreCall(NamedTuple):
    train_set: CondensedSet | ImageData
    protocol: Protocol


class Recorder(NamedTuple):
    """Calls by the name of the part."""

    condensed: dict[str, CondenseCall]
    scored: dict[str, ScoreCall]


class RankCall(NamedTuple):
    space: Sequence[str]
    train_set: CondensedSet | ImageData
    val: ImageData
    protocol: Protocol
    other_sets: Mapping[str, ImageData]


class PoolCall(NamedTuple):
    num_networks: int
    protocol: Protocol


def make_context(
    name: str,
    directory: Path,
    scale: str = "paper",
    *,
    size: int = 16,
    counts: Sequence[int] = (60, 60, 60),
    num_sets: int = 1,
    **request_fields: Any,
) -> ExperimentContext:
    """Return the context of an experiment on random images with these class sizes."""
    train, test = (tiny_data(list(counts), size=size, seed=seed) for seed in (0, 1))
    return registry.make_context(
        get_experiment(name),
        scale=scale,
        request=make_request(get_experiment(name), **request_fields),
        splits=Splits(train=train, test=test),
        run=RunContext(seed=1, compute=ComputeDevice.select("cpu")),
        directory=directory,
        num_sets=num_sets,
    )


def run_in(context: ExperimentContext, name: str) -> ExperimentResult:
    """Run an experiment without writing its results."""
    return get_experiment(name).run(context)


def fake_ranking(space: Sequence[str], seed: int) -> Ranking:
    """Return a ranking in the order of the space; test accuracies have another order, which depends on the seed."""
    rows = [
        RankedArchitecture(
            name=spec,
            accuracy=1 - index / 1000,
            seconds=1.0,
            other_accuracies={"test": (7 * seed + 3 * index) % 10 / 10},
        )
        for index, spec in enumerate(space)
    ]
    return Ranking(rows=tuple(rows))


def fake_pool(directory: Path) -> NetworkPool:
    """Return a pool with two states in every group; it has no files."""
    accuracies = [0.05 + group / 10 for group in range(1, 8) for _ in range(2)]
    states = [PoolState(directory / f"{row}.safetensors", row, 1, value, 1.0) for row, value in enumerate(accuracies)]
    return NetworkPool(directory, {"edges": EDGES}, tuple(states))
