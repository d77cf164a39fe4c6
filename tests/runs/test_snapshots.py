"""Snapshots: each is the set of a run with so many iterations."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset.data.condensed_set import CondensedSet
from condenset.engine import ComputeDevice
from condenset.methods import METHODS, make_recipe
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
DATA = tiny_data([7, 6, 8])


def make_tiny_recipe(method: str, steps: int) -> Any:
    """Return a recipe that updates the images `steps` times."""
    loops = {} if method == "dm" else {"outer_steps": 2, "inner_epochs": 1}
    iterations = steps if method == "dm" else steps // 2
    fields = {"network": "convnet(width=8, depth=2)", "batch_size": 4, "iterations": iterations, **loops}
    schedule = "paper" if method == "dm" else None  # without an average, which depends on the number of iterations
    return make_recipe(method, ipc=2, name="tiny", size=8, schedule=schedule, **fields)


def make_run(directory: Path, snapshots: set[int], recipe: Any) -> RunContext:
    fields = {"recipe": dataclasses.asdict(recipe), "exact_steps": frozenset(snapshots)}
    return RunContext(seed=1, compute=CPU, directory=directory, job="job", **fields)


@pytest.mark.parametrize("method", ["dm", "dsa"])
def test_snapshot_is_the_set_of_a_shorter_run(method: str, tmp_path: Path) -> None:
    recipe, condense = make_tiny_recipe(method, 6), METHODS[method].condense
    run = make_run(tmp_path, {2, 4, 6}, recipe)
    condensed = condense(DATA, recipe, run)
    seconds = []
    for step in (2, 4, 6):
        snapshot = CondensedSet.load(run.exact_set_path(step))
        expected = condense(DATA, make_tiny_recipe(method, step), RunContext(seed=1, compute=CPU))
        assert torch.equal(snapshot.images, expected.images)
        assert torch.equal(snapshot.labels, expected.labels)
        assert snapshot.provenance["step"] == step
        seconds.append(snapshot.provenance["seconds"])
    assert seconds == sorted(seconds)
    assert torch.equal(snapshot.images, condensed.images)
    assert seconds[-1] <= condensed.provenance["seconds"]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_interrupted_run_has_all_snapshots(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    recipe, condense = make_tiny_recipe("dm", 4), METHODS["dm"].condense
    for name in ("undisturbed", "interrupted"):
        (tmp_path / name).mkdir()
    undisturbed, interrupted, resumed = (
        make_run(tmp_path / name, {2, 3}, recipe) for name in ("undisturbed", "interrupted", "interrupted")
    )
    condense(DATA, recipe, undisturbed)
    interrupted.progress = StopAtStep(interrupted, stop)
    with pytest.raises(Interrupted):
        condense(DATA, recipe, interrupted)
    assert [interrupted.exact_set_path(step).exists() for step in (2, 3)] == [stop >= 2, stop >= 3]
    condense(DATA, recipe, resumed)
    for step in (2, 3):
        images, expected = (CondensedSet.load(run.exact_set_path(step)).images for run in (resumed, undisturbed))
        assert torch.equal(images, expected)


def test_time_to_save_snapshots_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunContext, "save_exact_set", lambda *_: time.sleep(0.4))
    recipe = make_tiny_recipe("dm", 3)
    began = time.monotonic()
    condensed = METHODS["dm"].condense(DATA, recipe, make_run(tmp_path, {1, 2, 3}, recipe))
    assert time.monotonic() - began - condensed.provenance["seconds"] >= 1.2
