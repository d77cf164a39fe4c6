"""What the tables and the map are made of: each cell of the set, and by the network, that it tells of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from watched import Asked, Filled, Search, lab, outcome_of, pool_in

from condenset import networks
from condenset.data.validation import split_off
from condenset.errors import UserError
from condenset.experiments.distribution import COLUMNS, _some, summary
from condenset.experiments.nas import VALIDATION
from condenset.experiments.settings import Settings
from condenset.methods.pools import Pool
from condenset.methods.trained import trained
from condenset.recipes import DistributionRecipe, TrainedRecipe
from condenset.train import TrainingSet
from condenset.types import CondensedSet
from plain import tiny_data


def name_of(small: object) -> str:
    assert isinstance(small, CondensedSet)
    return str(small.provenance["name"])


def test_every_pair_of_architectures_is_learned_on_the_one_and_tested_on_the_other(
    asked: Asked, tmp_path: Path
) -> None:
    outcome = outcome_of("architectures", lab("architectures", tmp_path, size=32))
    names = {"ConvNet": "convnet", "AlexNet": "alexnet", "VGG": "vgg11", "ResNet": "resnet18"}
    assert len(asked.scored) == 4 + 4 * 4 == len(outcome.records)
    for name, (small, protocol) in asked.scored.items():
        method, source, target = name.split("-")
        assert name_of(small) == f"{method}-{source}"
        assert protocol.network == f"{names[target]}(norm='batch')"
        learned = "resnet18_ap" if source == "ResNet" else names[source]  # as the paper does
        spec = asked.made[f"{method}-{source}"].recipe.network  # type: ignore[attr-defined]
        assert spec == networks.canonical(f"{learned}(norm='batch')", size=32)


def test_a_norms_sets_are_learned_and_tested_with_it(asked: Asked, tmp_path: Path) -> None:
    outcome = outcome_of("batchnorm", lab("batchnorm", tmp_path))
    assert list(asked.scored) == ["dsa-instance", "dm-instance", "dsa-batch", "dm-batch"]
    for name, (small, protocol) in asked.scored.items():
        assert name_of(small) == name
        spec = asked.made[name].recipe.network  # type: ignore[attr-defined]
        assert f"norm='{name.split('-')[1]}'" in spec and protocol.network == spec
    assert outcome.table.rows == [("instance", "0.1 ± 0.1", "0.2 ± 0.1"), ("batch", "0.3 ± 0.1", "0.4 ± 0.1")]


def test_every_group_is_matched_with_its_own_networks(asked: Asked, filled: list[Filled], tmp_path: Path) -> None:
    outcome = outcome_of("networks", lab("networks", tmp_path, ipcs=(1, 2)))
    assert (outcome.ipcs, outcome.shown) == ((1, 2), (2,))
    groups = ["random", *(f"{low}-{low + 10}" for low in range(10, 70, 10)), "70-100", "all"]
    assert list(asked.scored) == [f"dm-{ipc}-{group}" for group in groups for ipc in (1, 2)]
    for name, (recipe, *_) in asked.made.items():
        assert name_of(asked.scored[name].small) == name
        _, ipc, group = name.split("-", 2)
        pool = tmp_path / "parts" / "pool" / "networks"
        assert isinstance(recipe, DistributionRecipe)
        wanted = ("", "all") if group == "random" else (str(pool), group)
        assert (recipe.ipc, recipe.pool, recipe.group) == (int(ipc), *wanted)
    assert [(each["ipc"], each["group"]) for each in outcome.records] == [
        (i, group) for i in (1, 2) for group in groups
    ]
    assert [each["states"] for each in outcome.records[:9]] == [None, *[2] * 7, 14]


def test_a_group_without_networks_stays_in_the_table(
    asked: Asked, filled: list[Filled], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = pool_in(tmp_path)
    monkeypatch.setattr(Pool, "load", lambda _: dataclasses.replace(few, states=few.states[:3]))
    outcome = outcome_of("networks", lab("networks", tmp_path, ipcs=(1,)))
    assert outcome.table.columns[4:9] == ("30-40", "40-50", "50-60", "60-70", "≥70")
    (row,) = outcome.table.rows
    assert row[4:9] == ("-",) * 5
    assert "-" not in (*row[:4], row[9])
    assert [each["states"] for each in outcome.records] == [None, 2, 1, *[0] * 5, 3]
    assert [each["group"] for each in outcome.records if "accuracy_mean" not in each] == [
        "30-40",
        "40-50",
        "50-60",
        "60-70",
        "70-100",
    ]


def test_sets_are_scored_on_the_network_wished_for() -> None:
    """That of `dm` or of all methods, as where methods are compared; one of another method alone has no say."""
    usual = lab("sizes", Path(), "tiny").protocol().network
    for change, wanted in (("network=mlp", "mlp"), ("dm.network=mlp", "mlp"), ("herding.network=mlp", usual)):
        wished = Settings(experiment="sota", dataset="tiny", scale="tiny", set=(change,)).wishes
        mine = dataclasses.replace(lab("sota", Path(), "tiny"), wishes=wished)
        assert mine.protocol().network == mine.protocol(whole=True).network == wanted
        assert mine.protocol(network="lenet").network == "lenet"


def test_without_iterations_there_is_no_cost(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="iterations of dm must be 1 or more"):
        outcome_of("cost", lab("cost", tmp_path, "small", methods=("dm",), recipe={"iterations": 0}))


def test_every_point_of_the_cost_is_scored_by_the_set_of_its_step(asked: Asked, tmp_path: Path) -> None:
    outcome = outcome_of("cost", lab("cost", tmp_path, "small", methods=("dm",)))
    steps = asked.made["dm-50"].snapshots
    assert len(steps) == 6 and steps[-1] == 2000
    assert [(r["step"], r["condense_seconds"]) for r in outcome.records] == [(step, step) for step in steps]
    assert [r["accuracy_mean"] for r in outcome.records] == pytest.approx([n / 1000 for n in range(1, 7)])
    assert {name: name_of(small) for name, (small, _) in asked.scored.items()} == {
        f"dm-50-{step}": f"dm-50@{step}" for step in steps
    }


def test_the_whole_dataset_is_the_bound_of_every_row(asked: Asked, tmp_path: Path) -> None:
    tiny = lab("sota", tmp_path, "tiny", methods=("random", "dm"))
    outcome = outcome_of("sota", tiny)
    assert asked.scored["whole"] == (tiny.splits.train, tiny.protocol(whole=True))
    assert outcome.table.columns == ("images a class", "random", "dm", "whole dataset")
    assert [row[-1] for row in outcome.table.rows] == ["0.5 ± 0.1"] * 2  # the fifth to be scored
    assert outcome.records[-1]["method"] == "whole"
    (axes,) = outcome.draw().axes
    assert [line.get_ydata() for line in axes.lines if line.get_label() == "whole dataset"] == [[0.5, 0.5]]


def test_architectures_are_ranked_on_validation_images(
    asked: Asked, searched: dict[str, Search], tmp_path: Path
) -> None:
    tiny = lab("nas", tmp_path, "tiny", size=8)
    outcome_of("nas", tiny)
    _, validation = split_off(tiny.splits.train, VALIDATION, seed=1)
    texts = [*(f"{method} search" for method in tiny.methods), "early stopping search", "whole search"]
    assert list(searched) == texts
    for search in searched.values():
        assert search.validation.fingerprint == validation.fingerprint
        assert list(search.also) == ["test"] and search.also["test"] is tiny.splits.test


def test_the_map_is_that_of_a_network_trained_on_the_whole_dataset(asked: Asked, tmp_path: Path) -> None:
    tiny = lab("distribution", tmp_path, "tiny", size=8, counts=[20] * 4, methods=("dm",))
    (record,) = outcome_of("distribution", tiny).records
    data, recipe = tiny.splits.train, tiny.recipe("herding", 1)
    assert isinstance(recipe, TrainedRecipe)
    network, small = trained(data, recipe.protocol, tiny.run), tiny.condensed("dm-2", "dm", tiny.recipe("dm", 2))
    features, labels = [], []
    for images in (data, small):
        places = (images.labels < 3).nonzero()[:, 0]
        features.append(network.features(TrainingSet.of(images, torch.device("cpu")), places))
        labels.append(images.labels[places])
    wanted = summary(features[0], labels[0], features[1], labels[1])
    assert {key: record[key] for key in COLUMNS} == pytest.approx(wanted, rel=1e-4)


def test_the_real_images_of_the_map_are_drawn_by_the_seed() -> None:
    data = tiny_data([9, 9, 9, 9])
    first, again, other = (_some(data, 4, seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert data.labels[first].bincount().tolist() == [4, 4, 4]
