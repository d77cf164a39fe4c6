"""Sets kept on the way: each is what a run of so many iterations would have made."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset.engine import Place
from condenset.methods import METHODS
from condenset.presets import make_recipe
from condenset.runs import Interrupted, Run
from condenset.types import CondensedSet
from plain import StopAtStep, tiny_data

CPU = Place.best("cpu")
DATA = tiny_data([7, 6, 8])
FIELDS: dict[str, Any] = {"network": "convnet(width=8, depth=2)", "batch": 4}


def recipe_of(method: str, steps: int) -> Any:
    loops = {} if method == "dm" else {"outer": 2, "inner": 1}
    iterations = steps if method == "dm" else steps // 2
    return make_recipe(method, ipc=2, name="tiny", size=8, iterations=iterations, **FIELDS, **loops)


def new_run(folder: Path | None, snapshots: set[int], recipe: Any) -> Run:
    kept = frozenset(snapshots)
    return Run(seed=1, place=CPU, folder=folder, job="a", recipe=dataclasses.asdict(recipe), snapshots=kept)


@pytest.mark.parametrize("method", ["dm", "dsa"])
def test_a_snapshot_is_the_set_of_a_run_of_so_many_iterations(method: str, tmp_path: Path) -> None:
    recipe = recipe_of(method, 6)
    run = new_run(tmp_path, {2, 4, 6}, recipe)
    last = METHODS[method](DATA, recipe, run)
    seconds = []
    for step in (2, 4, 6):
        snapshot = CondensedSet.load(run.snapshot_path(step))
        alone = METHODS[method](DATA, recipe_of(method, step), Run(seed=1, place=CPU))
        assert torch.equal(snapshot.images, alone.images)
        assert torch.equal(snapshot.labels, alone.labels)
        assert snapshot.provenance["step"] == step
        seconds.append(snapshot.provenance["seconds"])
    assert seconds == sorted(seconds)
    assert torch.equal(snapshot.images, last.images)
    assert seconds[-1] <= last.provenance["seconds"]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_stop_loses_no_snapshot(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    recipe = recipe_of("dm", 4)
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = new_run(tmp_path / "whole", {2, 3}, recipe)
    METHODS["dm"](DATA, recipe, whole)
    for last in (stop, 99):
        run = new_run(tmp_path / "cut", {2, 3}, recipe)
        run.progress = StopAtStep(run, last)
        if last < 4:
            with pytest.raises(Interrupted):
                METHODS["dm"](DATA, recipe, run)
            assert [run.snapshot_path(step).exists() for step in (2, 3)] == [stop >= 2, stop >= 3]
        else:
            METHODS["dm"](DATA, recipe, run)
    for step in (2, 3):
        mine, theirs = (CondensedSet.load(each.snapshot_path(step)).images for each in (run, whole))
        assert torch.equal(mine, theirs)


def test_the_time_of_keeping_them_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "snapshot", lambda *_: time.sleep(0.4))
    recipe = recipe_of("dm", 3)
    began = time.monotonic()
    small = METHODS["dm"](DATA, recipe, new_run(tmp_path, {1, 2, 3}, recipe))
    assert time.monotonic() - began - small.provenance["seconds"] >= 1.2
