"""What single tables and figures do: their sets, their networks, and what they refuse."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from condenset import CondensedSet, ImageData, UserError
from condenset.data.image_data import Splits
from condenset.experiments.config import ExperimentConfig
from condenset.methods import METHODS
from condenset.pipeline import condensing
from condenset.runs.context import RunContext
from helpers.experiment_runs import run_tiny, skip_scoring
from helpers.reference_dm import tiny_data

pytestmark = pytest.mark.usefixtures("fast_tiny")


def test_batchnorm_needs_a_network_with_instance_norm(splits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must have instance norm, .* but got 'mlp"):
        run_tiny("batchnorm", splits, tmp_path, settings=("network=mlp",))


@pytest.mark.parametrize("name", ["sota", "sizes"])
def test_sizes_of_a_table_are_learned_at_once(name: str, splits: Splits, tmp_path: Path) -> None:
    result = run_tiny(name, splits, tmp_path, methods=("random", "dm"), ipcs=(1, 2))
    assert all("peak_memory_bytes" in record for record in result.records if record["ipc"])
    assert [(record["method"], record["ipc"], record.get("together")) for record in result.records] == [
        ("random", 1, None),
        ("dm", 1, [1, 2]),
        ("random", 2, None),
        ("dm", 2, [1, 2]),
        ("whole", None, None),
    ]


def test_norms_and_architectures_are_tested_on_their_networks(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols = skip_scoring(monkeypatch)
    run_tiny("batchnorm", splits, tmp_path / "batchnorm")
    assert all(f"norm='{part.split('-')[1]}'" in protocol.network for part, protocol in protocols.items())
    protocols.clear()
    run_tiny("architectures", splits, tmp_path / "architectures")
    specs = {part: protocol.network.split("(")[0] for part, protocol in protocols.items() if part.startswith("dm")}
    assert specs == {
        "dm-ConvNet-ConvNet": "convnet",
        "dm-ConvNet-MLP": "mlp",
        "dm-MLP-ConvNet": "convnet",
        "dm-MLP-MLP": "mlp",
    }


def test_existing_pool_is_used_and_experiments_can_be_moved(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    first = run_tiny("networks", splits, tmp_path / "first")
    shutil.move(tmp_path / "first/parts/pool/networks", tmp_path / "pool")
    monkeypatch.setattr("condenset.experiments.network_groups.fill_pool", None)
    second = run_tiny("networks", splits, tmp_path / "second", settings=(f"dm.pool={tmp_path / 'pool'}",))
    assert [record["group"] for record in second.records] == [record["group"] for record in first.records]
    for part in (f"dm-1-{record['group']}" for record in first.records if record["states"] != 0):
        paths = [tmp_path / name / "parts" / part / "condensed.safetensors" for name in ("first", "second")]
        sets = [CondensedSet.load(path) for path in paths]
        assert sets[0].images.equal(sets[1].images)

    shutil.move(tmp_path / "first", tmp_path / "moved")
    shutil.move(tmp_path / "pool", tmp_path / "moved/parts/pool/networks")
    monkeypatch.setattr(condensing, "METHODS", {})  # nothing is condensed again
    run_tiny("networks", splits, tmp_path / "moved")
    (tmp_path / "moved/parts/pool/networks/0001.safetensors").unlink()  # now it is another pool
    with pytest.raises(UserError, match="another recipe"):
        run_tiny("networks", splits, tmp_path / "moved")


def test_sota_needs_at_least_one_set(splits: Splits, tmp_path: Path) -> None:
    large = Splits(train=tiny_data([50, 50]), test=splits.test)
    with pytest.raises(UserError, match="dd takes at most 49 images per class"):
        run_tiny("sota", large, tmp_path, methods=("dd",), ipcs=(50,))


def test_sota_has_no_large_sets_of_dd(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_scoring(monkeypatch)
    large = Splits(train=tiny_data([50, 50]), test=splits.test)
    result = run_tiny("sota", large, tmp_path, methods=("random", "dd"), ipcs=(49, 50))
    pairs = [(record["method"], record["ipc"]) for record in result.records]
    assert pairs == [("random", 49), ("dd", 49), ("random", 50), ("whole", None)]


def test_sizes_that_do_not_fit_at_once_are_split(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    groups: list[list[int]] = []
    dm = METHODS["dm"]

    def condense_sizes(data: ImageData, recipes: Sequence[Any], run: RunContext) -> list[CondensedSet]:
        groups.append([recipe.ipc for recipe in recipes])
        assert dm.condense_sizes
        return dm.condense_sizes(data, recipes, run)

    limited = dataclasses.replace(
        dm, condense_sizes=condense_sizes, num_that_fit=lambda data, recipes, run: min(2, len(recipes))
    )
    monkeypatch.setattr(condensing, "METHODS", {**METHODS, "dm": limited})
    run_tiny("sizes", splits, tmp_path, methods=("dm",), ipcs=(1, 2, 3, 4))
    assert groups == [[1, 2], [3, 4]]


def test_images_too_small_for_an_architecture_are_an_error(splits: Splits, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="vgg11 needs images of"):
        run_tiny("architectures", splits, tmp_path, scale="small", ipcs=(1,))
    assert not (tmp_path / "parts").exists()


def test_batchnorm_refuses_pools_and_networks_of_one_method(splits: Splits, tmp_path: Path) -> None:
    for setting in ("dm.pool=a", "pool=a"):
        with pytest.raises(UserError, match="no use for --set pool"):
            _ = ExperimentConfig(experiment="batchnorm", dataset="tiny", scale="tiny", settings=(setting,)).request
    with pytest.raises(UserError, match="all methods share one network in this experiment"):
        run_tiny("batchnorm", splits, tmp_path, settings=("dsa.network=mlp",))


def test_random_images_are_condensed_on_no_architecture(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    result = run_tiny("architectures", splits, tmp_path, methods=("random", "dm"))
    assert [row[:2] for row in result.table.rows] == [("random", "-"), ("dm", "ConvNet"), ("dm", "MLP")]
    assert [(record["condensed_on"], record["tested_on"]) for record in result.records[:3]] == [
        (None, "ConvNet"),
        (None, "MLP"),
        ("ConvNet", "ConvNet"),
    ]


def test_cost_measures_up_to_the_last_image_step(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_scoring(monkeypatch)
    result = run_tiny("cost", splits, tmp_path, methods=("mmd", "dsa", "dm"))
    last = {record["method"]: record["step"] for record in result.records}
    assert last == {"mmd": 2, "dm": 2, "dsa": 2 * 2}  # iterations; dsa: times the outer steps
