"""Which set and which network each cell of a table comes from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from condenset import networks
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import Splits
from condenset.data.split import train_val_split
from condenset.errors import UserError
from condenset.experiments.config import ExperimentConfig
from condenset.experiments.feature_map import COLUMNS, compare_distributions
from condenset.experiments.nas import VAL_SHARE
from condenset.methods import DMRecipe
from condenset.methods.coresets.coreset import NetworkCoresetRecipe
from condenset.methods.pools.pool import NetworkPool
from condenset.methods.reference_network import get_reference_network
from condenset.training.dataset import DeviceDataset
from helpers.experiment_recorder import RankCall, Recorder, fake_pool, make_context, run_in
from helpers.experiment_runs import run_tiny


def part_name(train_set: object) -> str:
    """Return the part that a recorded set belongs to."""
    assert isinstance(train_set, CondensedSet)
    return str(train_set.provenance["name"])


def test_architectures_condenses_on_one_and_tests_on_the_others(recorder: Recorder, tmp_path: Path) -> None:
    result = run_in(make_context("architectures", tmp_path, size=32), "architectures")
    names = {"ConvNet": "convnet", "AlexNet": "alexnet", "VGG": "vgg11", "ResNet": "resnet18"}
    assert len(recorder.scored) == 4 + 4 * 4 == len(result.records)
    for name, (train_set, protocol) in recorder.scored.items():
        method, source, target = name.split("-")
        assert part_name(train_set) == f"{method}-{source}"
        assert protocol.network == f"{names[target]}(norm='batch')"
        source_network = "resnet18_ap" if source == "ResNet" else names[source]  # as in the paper
        spec = recorder.condensed[f"{method}-{source}"].recipe.network  # type: ignore[attr-defined]
        assert spec == networks.canonical_spec(f"{source_network}(norm='batch')", size=32)


def test_batchnorm_condenses_and_tests_with_the_same_norm(recorder: Recorder, tmp_path: Path) -> None:
    result = run_in(make_context("batchnorm", tmp_path), "batchnorm")
    assert list(recorder.scored) == ["dsa-instance", "dm-instance", "dsa-batch", "dm-batch"]
    for name, (train_set, protocol) in recorder.scored.items():
        assert part_name(train_set) == name
        spec = recorder.condensed[name].recipe.network  # type: ignore[attr-defined]
        assert f"norm='{name.split('-')[1]}'" in spec and protocol.network == spec
    assert result.table.rows == [("instance", "0.1 ± 0.1", "0.2 ± 0.1"), ("batch", "0.3 ± 0.1", "0.4 ± 0.1")]


@pytest.mark.usefixtures("pool_calls")
def test_networks_matches_each_group_with_its_networks(recorder: Recorder, tmp_path: Path) -> None:
    result = run_in(make_context("networks", tmp_path, ipcs=(1, 2)), "networks")
    assert (result.ipcs, result.figure_ipcs) == ((1, 2), (2,))
    groups = ["random", *(f"{low}-{low + 10}" for low in range(10, 70, 10)), "70-100", "all"]
    assert list(recorder.scored) == [f"dm-{ipc}-{group}" for group in groups for ipc in (1, 2)]
    pool = str(tmp_path / "parts" / "pool" / "networks")
    for name, (recipe, *_) in recorder.condensed.items():
        assert part_name(recorder.scored[name].train_set) == name
        _, ipc, group = name.split("-", 2)
        assert isinstance(recipe, DMRecipe)
        expected = ("", "all") if group == "random" else (pool, group)
        assert (recipe.ipc, recipe.pool, recipe.group) == (int(ipc), *expected)
    cells = [(record["ipc"], record["group"]) for record in result.records]
    assert cells == [(ipc, group) for ipc in (1, 2) for group in groups]
    assert [record["states"] for record in result.records[:9]] == [None, *[2] * 7, 14]


@pytest.mark.usefixtures("recorder", "pool_calls")
def test_group_without_networks_has_an_empty_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = fake_pool(tmp_path)
    monkeypatch.setattr(NetworkPool, "load", lambda _: dataclasses.replace(pool, states=pool.states[:3]))
    result = run_in(make_context("networks", tmp_path, ipcs=(1,)), "networks")
    assert result.table.columns[4:9] == ("30-40", "40-50", "50-60", "60-70", "≥70")
    (row,) = result.table.rows
    assert row[4:9] == ("-",) * 5
    assert "-" not in (*row[:4], row[9])
    assert [record["states"] for record in result.records] == [None, 2, 1, *[0] * 5, 3]
    empty = [record["group"] for record in result.records if "accuracy_mean" not in record]
    assert empty == ["30-40", "40-50", "50-60", "60-70", "70-100"]


def test_sets_are_scored_on_the_requested_network() -> None:
    """The network of `dm` or of all methods counts; that of another method does not."""
    default = make_context("sizes", Path(), "tiny").protocol().network
    for setting, expected in (("network=mlp", "mlp"), ("dm.network=mlp", "mlp"), ("herding.network=mlp", default)):
        context = make_context("sota", Path(), "tiny")
        config = ExperimentConfig(experiment="sota", dataset="tiny", scale="tiny", settings=(setting,))
        context.request = config.request
        assert context.protocol().network == context.protocol(whole=True).network == expected
        assert context.protocol(network="lenet").network == "lenet"


def test_cost_needs_iterations(tmp_path: Path) -> None:
    context = make_context("cost", tmp_path, "small", methods=("dm",), recipe_fields={"iterations": 0})
    with pytest.raises(UserError, match="iterations of dm must be 1 or more"):
        run_in(context, "cost")


@pytest.mark.parametrize("method", ["dm", "mmd"])
def test_cost_scores_the_set_after_each_step(method: str, recorder: Recorder, tmp_path: Path) -> None:
    result = run_in(make_context("cost", tmp_path, "small", methods=(method,)), "cost")
    steps = recorder.condensed[f"{method}-50"].exact_steps
    assert len(steps) == 6 and steps[-1] == 2000
    points = [(record["step"], record["condense_seconds"]) for record in result.records]
    assert points == [(step, step) for step in steps]
    assert [record["accuracy_mean"] for record in result.records] == pytest.approx([n / 1000 for n in range(1, 7)])
    assert {name: part_name(train_set) for name, (train_set, _) in recorder.scored.items()} == {
        f"{method}-50-{step}": f"{method}-50@{step}" for step in steps
    }


@pytest.mark.usefixtures("fast_tiny")
def test_cost_includes_the_training_of_networks(splits: Splits, tmp_path: Path) -> None:
    result = run_tiny("cost", splits, tmp_path, methods=("dmplus",))
    totals = [record["condense_seconds"] + record["pool_seconds"] for record in result.records]
    assert [row[2] for row in result.table.rows] == [f"{total:.3g}" for total in totals]
    assert all(record["pool_seconds"] > 0 for record in result.records)


def test_whole_dataset_is_the_bound_of_every_row(recorder: Recorder, tmp_path: Path) -> None:
    context = make_context("sota", tmp_path, "tiny", methods=("random", "dm"))
    result = run_in(context, "sota")
    assert recorder.scored["whole"] == (context.splits.train, context.protocol(whole=True))
    assert result.table.columns == ("images per class", "random", "dm", "whole dataset")
    assert [row[-1] for row in result.table.rows] == ["0.5 ± 0.1"] * 2  # the fifth part to be scored
    assert result.records[-1]["method"] == "whole"
    (axes,) = result.draw().axes
    assert [line.get_ydata() for line in axes.lines if line.get_label() == "whole dataset"] == [[0.5, 0.5]]


@pytest.mark.usefixtures("recorder")
def test_nas_ranks_on_validation_images(rank_calls: dict[str, RankCall], tmp_path: Path) -> None:
    context = make_context("nas", tmp_path, "tiny", size=8)
    run_in(context, "nas")
    _, val = train_val_split(context.splits.train, VAL_SHARE, seed=1)
    descriptions = [*(f"{method} search" for method in context.methods), "early stopping search", "whole search"]
    assert list(rank_calls) == descriptions
    for call in rank_calls.values():
        assert call.val.fingerprint == val.fingerprint
        assert list(call.other_sets) == ["test"] and call.other_sets["test"] is context.splits.test


@pytest.mark.usefixtures("recorder")
def test_map_uses_a_network_trained_on_the_whole_dataset(tmp_path: Path) -> None:
    context = make_context("distribution", tmp_path, "tiny", size=8, counts=[20] * 4, methods=("dm",))
    (record,) = run_in(context, "distribution").records
    data, recipe = context.splits.train, context.recipe("herding", 1)
    assert isinstance(recipe, NetworkCoresetRecipe)
    network = get_reference_network(data, recipe.protocol, context.run)
    features, labels = [], []
    for images in (data, context.condense("dm-2", "dm", context.recipe("dm", 2))):
        indices = (images.labels < 3).nonzero()[:, 0]
        features.append(network.features(DeviceDataset.from_data(images, torch.device("cpu")), indices))
        labels.append(images.labels[indices])
    expected = compare_distributions(features[0], labels[0], features[1], labels[1])
    assert {name: record[name] for name in COLUMNS} == pytest.approx(expected, rel=1e-4)
