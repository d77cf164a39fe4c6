"""What the tables of architectures and the map are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import condenset as cs
from condenset import networks
from condenset.engine import Place
from condenset.experiments import find, wishes_for
from condenset.experiments.common import Lab, Record
from condenset.experiments.distribution import _some
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
    made: dict[str, Made]
    scored: dict[str, Scored]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked({}, {})

    def condensed(self: Lab, name: str, method: str, recipe: Recipe, data: ImageData | None = None, **more: Any) -> Any:
        data = data or self.splits.train
        found.made[name] = Made(recipe, data, list(more.get("snapshots", ())))
        small = cs.condense(data, "random", ipc=1, seed=self.run.seed, device="cpu")
        small.provenance["name"] = name  # type: ignore[index]
        return small

    def scored(self: Lab, name: str, small: CondensedSet | ImageData, protocol: Protocol, test: Any = None) -> Record:
        found.scored[name] = Scored(small, protocol)
        mean = 0.5 if isinstance(small, ImageData) else 0.2
        return {"accuracies": [mean], "accuracy_mean": mean, "accuracy_std": 0.0, "seconds": 1.0}

    monkeypatch.setattr(Lab, "condensed", condensed)
    monkeypatch.setattr(Lab, "snapshot", lambda self, name, step: condensed(self, f"{name}@{step}", "", None))  # type: ignore
    monkeypatch.setattr(Lab, "scored", scored)
    return found


def lab(
    name: str, folder: Path, scale: str = "paper", *, size: int = 16, counts: list[int] | None = None, **wished: Any
) -> Lab:
    counts = counts or [60, 60, 60]
    splits = Splits(train=tiny_data(counts, size=size), test=tiny_data(counts, size=size, seed=1))
    run, wishes = Run(seed=1, place=Place.best("cpu")), wishes_for(find(name), **wished)
    return Lab(dataset="tiny", scale=scale, wishes=wishes, splits=splits, run=run, folder=folder, sets=1)


def test_every_pair_of_architectures_is_learned_on_the_one_and_tested_on_the_other(
    asked: Asked, tmp_path: Path
) -> None:
    outcome = find("architectures").perform(lab("architectures", tmp_path, size=32))  # type: ignore[misc]
    names = {"ConvNet": "convnet", "AlexNet": "alexnet", "VGG": "vgg11", "ResNet": "resnet18"}
    assert len(asked.scored) == 4 + 4 * 4 == len(outcome.records)
    for name, (small, protocol) in asked.scored.items():
        method, source, target = name.split("-")
        assert isinstance(small, CondensedSet) and small.provenance["name"] == f"{method}-{source}"
        assert protocol.network == f"{names[target]}(norm='batch')"
        learned = "resnet18_ap" if source == "ResNet" else names[source]  # as the paper does
        spec = asked.made[f"{method}-{source}"].recipe.network  # type: ignore[attr-defined]
        assert spec == networks.canonical(f"{learned}(norm='batch')", size=32)


def test_the_real_images_of_the_map_are_drawn_by_the_seed() -> None:
    data = tiny_data([9, 9, 9, 9])
    first, again, other = (_some(data, 4, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert data.labels[first].bincount().tolist() == [4, 4, 4]
