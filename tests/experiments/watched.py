"""A laboratory that notes what an experiment asks of it instead of doing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from condenset.engine import Place
from condenset.experiments import find, wishes_for
from condenset.experiments.common import Lab
from condenset.experiments.outcomes import Outcome
from condenset.methods.pools import EDGES, Pool, State
from condenset.ranking import Ranked, Ranking
from condenset.recipes import Protocol, Recipe
from condenset.runs import Run
from condenset.types import CondensedSet, ImageData, Splits
from plain import tiny_data


class Made(NamedTuple):
    recipe: Recipe
    data: ImageData
    snapshots: list[int]


class Scored(NamedTuple):
    small: CondensedSet | ImageData
    protocol: Protocol


class Asked(NamedTuple):
    """By the names of parts."""

    made: dict[str, Made]
    scored: dict[str, Scored]


class Search(NamedTuple):
    space: Sequence[str]
    small: CondensedSet | ImageData
    validation: ImageData
    protocol: Protocol
    also: Mapping[str, ImageData]


class Filled(NamedTuple):
    num: int
    protocol: Protocol


def lab(
    name: str,
    folder: Path,
    scale: str = "paper",
    *,
    size: int = 16,
    counts: list[int] | None = None,
    sets: int | None = 1,
    **wished: Any,
) -> Lab:
    counts = counts or [60, 60, 60]
    splits = Splits(train=tiny_data(counts, size=size), test=tiny_data(counts, size=size, seed=1))
    run, wishes = Run(seed=1, place=Place.best("cpu")), wishes_for(find(name), **wished)
    return Lab(dataset="tiny", scale=scale, wishes=wishes, splits=splits, run=run, folder=folder, sets=sets)


def outcome_of(name: str, lab: Lab) -> Outcome:
    perform = find(name).perform
    assert perform
    return perform(lab)


def ranking_of(space: Sequence[str], seed: int) -> Ranking:
    """The space in the order given, whose test accuracies are in none."""
    rows = [
        Ranked(name=spec, accuracy=1 - place / 1000, seconds=1.0, also={"test": (7 * seed + 3 * place) % 10 / 10})
        for place, spec in enumerate(space)
    ]
    return Ranking(rows=tuple(rows))


def pool_in(folder: Path) -> Pool:
    """Two states in every group."""
    accuracies = [0.05 + place / 10 for place in range(1, 8) for _ in range(2)]
    states = [State(folder / f"{row}.safetensors", row, 1, each) for row, each in enumerate(accuracies)]
    return Pool(folder, {"edges": EDGES}, tuple(states))
