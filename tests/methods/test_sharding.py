"""Tests of condensing in shards: the set is that of one process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset import METHODS, CondensedSet, ImageData, UserError
from condenset.data.partition import PartLayout
from condenset.engine import tasks
from condenset.engine.device import ComputeDevice
from condenset.engine.tasks import Engine
from condenset.methods import Recipe
from condenset.methods.sharding import CondenseJob, check_divisible, condense_jobs, remove_shards
from condenset.runs import checkpoint, loop, snapshots
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.runs.snapshots import read_snapshots
from helpers.interruption import RecordProgress, StopAtStep
from helpers.local_engine import LocalEngine
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe

DIVISIBLE = ["random", "mmd", "dm", "m3d", "ncfm", "dance", "dsdm", "datadam", "dmplus", "gmmn"]


class TwoWorkers(LocalEngine):
    """An engine that divides work for several workers."""

    def num_workers(self) -> int:
        return 2


def make_run(engine: Engine | None = None, **fields: Any) -> RunContext:
    return RunContext(**{"compute": ComputeDevice.select("cpu"), "classes_per_chunk": 2, "engine": engine, **fields})


def condense(data: ImageData, recipes: list[Recipe], run: RunContext) -> list[CondensedSet]:
    ((_, sets),) = condense_jobs([CondenseJob(recipes=recipes, data=data, run=run)], run)
    return sets


@pytest.fixture(scope="module")
def data() -> ImageData:
    """Six classes in random order; some have fewer images than a batch."""
    return tiny_data([9, 3, 9, 5, 9, 9], channels=1)


@pytest.mark.parametrize("method", DIVISIBLE)
def test_shards_give_the_same_set_as_one_process(method: str, data: ImageData) -> None:
    recipe = tiny_recipe(method)
    whole = METHODS[method].condense(data, recipe, make_run())
    (condensed,) = condense(data, [recipe], make_run(TwoWorkers()))
    assert torch.equal(condensed.images, whole.images)
    assert torch.equal(condensed.labels, whole.labels)
    assert condensed.class_names == whole.class_names
    assert condensed.provenance["shards"] == 3
    changing = {"seconds", "peak_memory_bytes", "pool"}
    expected = {name: value for name, value in whole.provenance.items() if name not in changing}
    assert {name: condensed.provenance[name] for name in expected} == expected


def test_shards_of_partitioned_sets_decode_to_the_same_images() -> None:
    data, recipe = tiny_data([9, 3, 9, 5, 9, 9]), tiny_recipe("dm", partition=2, decoder="dct")
    whole = METHODS["dm"].condense(data, recipe, make_run())
    (condensed,) = condense(data, [recipe], make_run(TwoWorkers()))
    assert condensed.layout == PartLayout(2, "dct")
    assert torch.equal(condensed.images, whole.images)


@pytest.mark.parametrize("method", DIVISIBLE[1:])
def test_loss_of_all_shards_is_that_of_one_process(method: str, data: ImageData, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    recipe, whole = tiny_recipe(method), make_run(directory=tmp_path / "whole")
    METHODS[method].condense(data, recipe, whole)
    divided = make_run(TwoWorkers(), directory=tmp_path)
    condense(data, [recipe], divided)
    losses = [{event["step"]: event["loss"] for event in run.read_events("step")} for run in (whole, divided)]
    assert len(losses[0]) > 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("method", "max_bytes"), [("dm", 2**20), ("dm", 8 * 12 * 12), ("dmplus", 2**20), ("dsa", 2**20)]
)
def test_snapshots_of_all_shards_are_those_of_one_process(
    method: str, max_bytes: int, data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", max_bytes)  # small: one image per class
    (tmp_path / "whole").mkdir()
    recipe = tiny_recipe(method)
    whole = METHODS[method].condense(data, recipe, make_run(directory=tmp_path / "whole", num_snapshots=3))
    (condensed,) = condense(data, [recipe], make_run(TwoWorkers(), directory=tmp_path, num_snapshots=3))
    expected, joined = read_snapshots(tmp_path / "whole", whole), read_snapshots(tmp_path, condensed)
    assert [snapshot.step for snapshot in joined] == [snapshot.step for snapshot in expected]
    assert len(joined) > 1
    for first, second in zip(joined, expected, strict=True):
        assert torch.equal(first.images, second.images)


@pytest.mark.parametrize("init", ["real", "noise"])
def test_classes_with_different_numbers_of_images_are_the_same_in_shards(init: str, data: ImageData) -> None:
    recipe = tiny_recipe("dm", ipc=(1, 2, 3, 4, 5, 6), init=init)
    whole = METHODS["dm"].condense(data, recipe, make_run())
    (condensed,) = condense(data, [recipe], make_run(TwoWorkers()))
    assert torch.equal(condensed.images, whole.images)


def test_several_sizes_are_learned_at_once_in_shards(data: ImageData) -> None:
    recipes = [tiny_recipe("dm", ipc=ipc) for ipc in (1, 3)]
    sizes = METHODS["dm"].condense_sizes
    assert sizes is not None
    expected = sizes(data, recipes, make_run())
    sets = condense(data, recipes, make_run(TwoWorkers()))
    assert [torch.equal(first.images, second.images) for first, second in zip(sets, expected, strict=True)] == [
        True
    ] * 2


def test_classes_that_depend_on_each_other_are_one_shard(data: ImageData) -> None:
    recipe = tiny_recipe("dm", network="convnet(width=4, depth=1, norm='batch')")
    whole = METHODS["dm"].condense(data, recipe, make_run(classes_per_chunk=None))
    (condensed,) = condense(data, [recipe], make_run(TwoWorkers(), classes_per_chunk=None))
    assert torch.equal(condensed.images, whole.images)
    assert condensed.provenance["shards"] == 1


@pytest.mark.parametrize(
    ("method", "fields", "reason"),
    [
        ("dc", {}, "dc cannot be divided among workers, because its images of a class depend on the other classes"),
        ("idm", {}, "its networks train on the synthetic images of all classes"),
        ("dm", {"network": "convnet(norm='batch')"}, "batch norm mixes the classes: use engine='local', or another"),
    ],
)
def test_dependent_classes_are_refused_with_reason_and_alternative(
    method: str, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        check_divisible(tiny_recipe(method, **fields))


@pytest.mark.parametrize("method", DIVISIBLE)
def test_independent_classes_are_accepted(method: str) -> None:
    check_divisible(tiny_recipe(method))


def test_stopped_shards_continue_with_the_same_division(
    data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "REPORT_SECONDS", 0.0)
    recipe = tiny_recipe("dm", iterations=20)
    whole = METHODS["dm"].condense(data, recipe, make_run())
    run = make_run(TwoWorkers(), directory=tmp_path, job="dm-2")
    run.progress = StopAtStep(run, 500)
    with pytest.raises(Interrupted):
        condense(data, [recipe], run)
    files = [path.name for path in (tmp_path / "tasks").glob("*/*") if path.suffix != ".jsonl"]
    assert sorted(files) == ["checkpoint", "set-0.safetensors"]
    run = make_run(LocalEngine(), directory=tmp_path, job="dm-2", progress=RecordProgress())
    (condensed,) = condense(data, [recipe], run)
    assert isinstance(run.progress, RecordProgress)
    assert 333 <= run.progress.updates[0] <= run.progress.updates[-1] == 1000, "finished shards count"
    assert condensed.provenance["shards"] == 3, "another number of workers does not change the shards"
    assert torch.equal(condensed.images, whole.images)
    remove_shards("dm-2", run)
    assert not (tmp_path / "tasks").exists()


def test_finished_shards_are_not_condensed_again(data: ImageData, tmp_path: Path) -> None:
    recipe = tiny_recipe("dm")
    run = make_run(TwoWorkers(), directory=tmp_path, job="dm-2")
    (first,) = condense(data, [recipe], run)
    other_data = dataclasses.replace(data, images=255 - data.images, stored_fingerprint=data.fingerprint)
    (second,) = condense(other_data, [recipe], run)
    assert torch.equal(first.images, second.images)


def test_shards_of_another_recipe_are_refused(data: ImageData, tmp_path: Path) -> None:
    condense(data, [tiny_recipe("dm")], make_run(TwoWorkers(), directory=tmp_path, job="dm-2", recipe={"lr": 1}))
    with pytest.raises(UserError, match=r"dm-2\.json belongs to another recipe; delete it to restart this job"):
        condense(data, [tiny_recipe("dm")], make_run(TwoWorkers(), directory=tmp_path, job="dm-2", recipe={"lr": 2}))


def test_job_restarts_if_its_division_is_deleted(data: ImageData, tmp_path: Path) -> None:
    condense(data, [tiny_recipe("dm")], make_run(TwoWorkers(), directory=tmp_path, job="dm-2", recipe={"lr": 1}))
    (tmp_path / "tasks" / "dm-2.json").unlink()
    recipe = tiny_recipe("dm", lr=2.0)
    whole = METHODS["dm"].condense(data, recipe, make_run())
    run = make_run(LocalEngine(), directory=tmp_path, job="dm-2", recipe={"lr": 2})
    (condensed,) = condense(data, [recipe], run)
    assert torch.equal(condensed.images, whole.images)


def test_driver_keeps_its_previous_checkpoint(data: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)
    run = make_run(LocalEngine(), directory=tmp_path, job="dm-2")
    run.progress = StopAtStep(run, 50)
    with pytest.raises(Interrupted):
        condense(data, [tiny_recipe("dm", iterations=20)], run)
    last = checkpoint.read_info(tmp_path / "tasks/dm-2.00000/checkpoint")
    previous = checkpoint.read_info(tmp_path / "tasks/dm-2.00000/checkpoint.previous")
    assert last is not None and previous is not None and previous.step < last.step < 20


def test_progress_counts_all_shards(data: ImageData) -> None:
    run = make_run(TwoWorkers(), progress=RecordProgress())
    condense(data, [tiny_recipe("dm")], run)
    assert isinstance(run.progress, RecordProgress)
    assert run.progress.updates == sorted(run.progress.updates)
    assert run.progress.updates[-1] == 1000
