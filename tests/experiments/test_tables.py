"""What one table or figure has of its own: the sets it is made of, its networks, what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from performed import go, looked_at, tiny_run

from condenset import CondensedSet, UserError, workflow
from condenset.experiments import find, perform, wishes_for
from condenset.experiments.settings import Settings
from condenset.types import Splits
from plain import tiny_data

pytestmark = pytest.mark.usefixtures("tiniest")


def test_batch_norm_needs_a_norm_to_take_the_place_of(splits: Splits, tmp_path: Path) -> None:
    asked = Settings(experiment="batchnorm", dataset="tiny", scale="tiny", set=("network=mlp",)).wishes
    with pytest.raises(UserError, match=r"must have instance norm, .* but got 'mlp"):
        perform("batchnorm", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=asked)


@pytest.mark.parametrize("name", ["sota", "sizes"])
def test_the_sizes_of_a_table_are_learned_at_once(name: str, splits: Splits, tmp_path: Path) -> None:
    asked = Settings(experiment=name, dataset="tiny", scale="tiny", methods=("random", "dm"), ipc=(1, 2)).wishes
    outcome = perform(name, splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=asked)
    found = [(each["method"], each["ipc"], each.get("together")) for each in outcome.records]
    assert all("peak_memory_bytes" in each for each in outcome.records if each["ipc"])
    assert found == [
        ("random", 1, None),
        ("dm", 1, [1, 2]),
        ("random", 2, None),
        ("dm", 2, [1, 2]),
        ("whole", None, None),
    ]


def test_each_norm_and_architecture_is_tested_on_its_own(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols = looked_at(monkeypatch)
    go("batchnorm", splits, tmp_path / "batchnorm")
    assert all(f"norm='{job.split('-')[1]}'" in each.network for job, each in protocols.items())
    protocols.clear()
    go("architectures", splits, tmp_path / "architectures")
    assert {job: each.network.split("(")[0] for job, each in protocols.items() if job.startswith("dm")} == {
        "dm-ConvNet-ConvNet": "convnet",
        "dm-ConvNet-MLP": "mlp",
        "dm-MLP-ConvNet": "convnet",
        "dm-MLP-MLP": "mlp",
    }


def test_a_pool_may_be_given_and_all_of_it_be_moved(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    about = {"dataset": "tiny", "scale": "tiny"}
    own = go("networks", splits, tmp_path / "own")
    trained = tmp_path / "own" / "parts" / "pool" / "networks"
    shutil.move(trained, tmp_path / "pool")
    monkeypatch.setattr("condenset.experiments.pooled.fill_pool", None)
    wishes = Settings(experiment="networks", **about, set=(f"dm.pool={tmp_path / 'pool'}",)).wishes
    given = perform("networks", splits, tiny_run(tmp_path / "a"), tmp_path / "a", **about, wishes=wishes)
    assert [each["group"] for each in given.records] == [each["group"] for each in own.records]
    for name in (f"dm-1-{each['group']}" for each in own.records if each["states"] != 0):
        sets = [CondensedSet.load(tmp_path / run / "parts" / name / "condensed.safetensors") for run in ("own", "a")]
        assert sets[0].images.equal(sets[1].images)

    shutil.move(tmp_path / "own", tmp_path / "moved")  # an experiment with the pool in it
    shutil.move(tmp_path / "pool", tmp_path / "moved" / "parts" / "pool" / "networks")
    monkeypatch.setattr(workflow, "METHODS", {})
    go("networks", splits, tmp_path / "moved")
    (tmp_path / "moved/parts/pool/networks/0001.safetensors").unlink()  # which makes it another pool
    with pytest.raises(UserError, match="belongs to another recipe"):
        go("networks", splits, tmp_path / "moved")


def test_a_pool_that_has_changed_where_it_lies_is_noticed(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    go("networks", splits, tmp_path)
    (tmp_path / "parts/pool/networks/0001.safetensors").unlink()
    with pytest.raises(UserError, match="belongs to another recipe"):
        go("networks", splits, tmp_path)


def test_a_table_without_a_single_set_is_refused(splits: Splits, tmp_path: Path) -> None:
    large = Splits(train=tiny_data([50, 50]), test=splits.test)
    wishes = Settings(experiment="sota", dataset="tiny", scale="tiny", methods=("dd",), ipc=(50,)).wishes
    with pytest.raises(UserError, match="has dd for sets below 50 images a class"):
        perform("sota", large, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)


def test_sizes_that_do_not_all_fit_are_paired_with_later_ones(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    at_once: list[list[int]] = []
    learn = workflow.dm_sizes
    monkeypatch.setattr(workflow, "fitting", lambda _, sizes, run: min(2, len(sizes)))
    monkeypatch.setattr(
        workflow, "dm_sizes", lambda data, sizes, run: at_once.append([e.ipc for e in sizes]) or learn(data, sizes, run)
    )
    wishes = Settings(experiment="sizes", dataset="tiny", scale="tiny", methods=("dm",), ipc=(1, 2, 3, 4)).wishes
    perform("sizes", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)
    assert at_once == [[1, 2], [3, 4]]


def test_images_too_small_for_an_architecture_are_told_of_first(splits: Splits, tmp_path: Path) -> None:
    wishes = wishes_for(find("architectures"), ipcs=(1,))
    with pytest.raises(UserError, match="vgg11 needs images of"):
        perform("architectures", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="small", wishes=wishes)
    assert not (tmp_path / "parts").exists()


def test_what_a_norms_table_cannot_take_is_refused(splits: Splits, tmp_path: Path) -> None:
    for setting in ("dm.pool=there", "pool=there"):
        with pytest.raises(UserError, match="leaves nothing to choose by --set pool"):
            _ = Settings(experiment="batchnorm", dataset="tiny", scale="tiny", set=(setting,)).wishes
    wishes = Settings(experiment="batchnorm", dataset="tiny", scale="tiny", set=("dsa.network=mlp",)).wishes
    with pytest.raises(UserError, match="all methods have one network here"):
        perform("batchnorm", splits, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)


def test_random_images_are_condensed_on_no_architecture(splits: Splits, tmp_path: Path) -> None:
    wishes = wishes_for(find("architectures"), methods=("random", "dm"))
    outcome = perform("architectures", splits, tiny_run(tmp_path), tmp_path, dataset="t", scale="tiny", wishes=wishes)
    assert [row[:2] for row in outcome.table.rows] == [("random", "-"), ("dm", "ConvNet"), ("dm", "MLP")]
    assert [(r["condensed_on"], r["tested_on"]) for r in outcome.records[:3]] == [
        (None, "ConvNet"),
        (None, "MLP"),
        ("ConvNet", "ConvNet"),
    ]


def test_the_cost_of_gradient_matching_is_told_to_its_last_step(
    splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at(monkeypatch)
    outcome = go("cost", splits, tmp_path)
    last = {record["method"]: record["step"] for record in outcome.records}
    assert last == {"dm": 2, "dsa": 2 * 2}  # iterations; iterations times the outer steps of each


def test_sets_of_50_are_too_large_for_dd(splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at(monkeypatch)
    large = Splits(train=tiny_data([50, 50]), test=splits.test)
    wishes = Settings(experiment="sota", dataset="tiny", scale="tiny", methods=("random", "dd"), ipc=(49, 50)).wishes
    outcome = perform("sota", large, tiny_run(tmp_path), tmp_path, dataset="tiny", scale="tiny", wishes=wishes)
    found = [(record["method"], record["ipc"]) for record in outcome.records]
    assert found == [("random", 49), ("dd", 49), ("random", 50), ("whole", None)]
