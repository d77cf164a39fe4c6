"""`zca=True`: any method learns whitened images, and the set has their pixels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.data.whitening import fit_whitening
from condenset.engine import ComputeDevice
from condenset.methods import METHODS
from condenset.methods.coresets.random import RandomRecipe
from condenset.methods.registry import make_recipe
from condenset.methods.sharding import CondenseJob, condense_jobs
from condenset.methods.trained_files import training_metadata
from condenset.methods.zca import whiten
from condenset.pipeline.condensing import load_or_condense
from condenset.runs.context import RunContext
from condenset.training.protocol import Protocol
from helpers.interruption import RecordProgress
from helpers.local_engine import LocalEngine
from helpers.reference_dm import tiny_data
from helpers.registries import replaced_item
from helpers.tiny_recipes import tiny_recipe

CPU = ComputeDevice.select("cpu")
FAST: dict[str, Any] = {"device": "cpu", "verbose": False}


@pytest.mark.parametrize("method", ["random", "herding", "dd", "dsa", "dm", "idc", "mtt"])
def test_methods_learn_whitened_images(method: str) -> None:
    data = tiny_data([6, 6])
    recipe = tiny_recipe(method, zca=True, **({"partition": 1} if method == "idc" else {}))
    condensed = cs.condense(data, recipe, **FAST)
    expected = fit_whitening(data.images, CPU.device)
    assert condensed.whitening is not None
    assert torch.equal(condensed.whitening.matrix, expected.matrix)
    assert condensed.provenance["recipe"]["zca"] is True
    plain = cs.condense(data, dataclasses.replace(recipe, zca=False), **FAST)
    assert plain.whitening is None and plain.provenance["recipe"]["zca"] is False
    if METHODS[method].is_coreset:
        pixels = (255 * condensed.images).round().to(torch.uint8)
        assert all((data.images == image).flatten(1).all(1).any() for image in pixels)
    else:
        assert not torch.allclose(condensed.images, plain.images, atol=1e-3)
        assert condensed.images.isfinite().all()
    fields: dict[str, Any] = {"network": "convnet(width=4, depth=1)", "num_networks": 1, "epochs": 1}
    assert 0 <= cs.evaluate(condensed, tiny_data([3, 3], seed=1), **fields, **FAST).mean <= 1


def test_a_stored_set_with_another_whitening_is_refused(tmp_path: Path) -> None:
    data, run, path = tiny_data([6, 6]), RunContext(compute=CPU), tmp_path / "a.safetensors"
    for first, second in ((True, False), (False, True)):
        path.unlink(missing_ok=True)
        load_or_condense(path, "random", RandomRecipe(ipc=1, zca=first), data, run)
        load_or_condense(path, "random", RandomRecipe(ipc=1, zca=first), data, run)
        with pytest.raises(cs.UserError, match=r"belongs to another recipe \(it differs in zca\)"):
            load_or_condense(path, "random", RandomRecipe(ipc=1, zca=second), data, run)


def test_a_method_that_does_not_use_the_whitening_is_refused() -> None:
    random = METHODS["random"]

    def condense(data: cs.ImageData, recipe: RandomRecipe, run: RunContext) -> cs.CondensedSet:
        return random.condense(dataclasses.replace(data, whitening=None), recipe, run)

    unaware = replaced_item(METHODS, dataclasses.replace(random, condense=condense))
    with unaware, pytest.raises(cs.UserError, match="random does not support zca=True"):
        cs.condense(tiny_data([6, 6]), "random", ipc=1, zca=True, **FAST)


def test_initial_images_are_those_without_whitening() -> None:
    data = tiny_data([6, 6])
    first, second = (cs.condense(data, "dm", ipc=2, iterations=0, zca=zca, **FAST) for zca in (True, False))
    torch.testing.assert_close(first.images, second.images, rtol=0, atol=1e-5)


def test_jobs_of_a_run_share_the_whitening_and_show_its_progress() -> None:
    data, progress = tiny_data([6, 6]), RecordProgress()
    run = RunContext(compute=CPU, progress=progress)
    first, second = (whiten(data, tiny_recipe(method, zca=True), run) for method in ("random", "dm"))
    assert first.whitening is second.whitening is not None
    assert progress.updates == [12]
    assert whiten(data, tiny_recipe("dm"), run) is data


def test_shards_have_the_whitening_of_all_classes() -> None:
    class TwoWorkers(LocalEngine):
        def num_workers(self) -> int:
            return 2

    recipe, run = tiny_recipe("dm", zca=True), RunContext(compute=CPU, classes_per_chunk=1)
    data = whiten(tiny_data([6, 6, 6, 6]), recipe, run)
    whole = METHODS["dm"].condense(data, recipe, run)
    divided = run.derive(engine=TwoWorkers())
    ((_, (condensed,)),) = condense_jobs([CondenseJob(recipes=[recipe], data=data, run=divided)], divided)
    assert condensed.provenance["shards"] > 1
    assert condensed.whitening is not None and data.whitening is not None
    assert torch.equal(condensed.whitening.matrix, data.whitening.matrix)
    assert torch.equal(condensed.images, whole.images)


def test_trained_networks_are_not_shared_with_runs_without_whitening() -> None:
    data, run = tiny_data([6, 6]), RunContext(compute=CPU)
    whitened = whiten(data, tiny_recipe("dm", zca=True), run)
    assert training_metadata(data, Protocol(), run) != training_metadata(whitened, Protocol(), run)


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        ("dm", {"zca": "yes"}, "zca must be true or false"),
        ("dm", {"zca": True, "partition": 2}, "partition must be 1 with zca=True, but got 2"),
        ("dm", {"zca": True, "clamp": True}, "clamp must be false with zca=True, but got True"),
    ],
)
def test_what_cannot_be_whitened_is_refused(method: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        tiny_recipe(method, size=32, **fields)


@pytest.mark.parametrize("method", ["idc", "dmplus", "m3d"])
def test_methods_leave_out_partition_and_clamp(method: str) -> None:
    recipe: Any = make_recipe(method, ipc=10, name="images", size=32, zca=True)
    assert recipe.partition == 1 and not getattr(recipe, "clamp", False)


def test_a_replay_memory_has_no_whitening() -> None:
    with pytest.raises(cs.UserError, match="zca must be false, because every step would have its own whitening"):
        cs.Memory(zca=True, **FAST)
