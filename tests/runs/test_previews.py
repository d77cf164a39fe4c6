"""Small pictures of the images while they are learned, which reports show."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from condenset.data.condensed_set import CondensedSet
from condenset.engine import ComputeDevice
from condenset.errors import UserError
from condenset.methods import METHODS, make_recipe
from condenset.methods.matching.dm import condense_sizes
from condenset.runs import snapshots
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.runs.snapshots import choose_images, read_snapshots, spaced_steps, to_pixels, write_snapshot
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data
from helpers.reports import make_data, make_set

CPU = ComputeDevice.select("cpu")
DATA = tiny_data([7, 6, 8])
TINY = {"network": "convnet(width=8, depth=1)", "batch_size": 4, "iterations": 4}


def make_recipe_of(method: str, ipc: int = 2, **fields: Any) -> Any:
    return make_recipe(method, ipc=ipc, name="tiny", size=8, **TINY | fields)


def make_run(directory: Path, recipe: Any, num: int = 2) -> RunContext:
    fields = {"recipe": dataclasses.asdict(recipe), "num_snapshots": num}
    return RunContext(seed=1, compute=CPU, directory=directory, job="job", **fields)


def test_steps_are_evenly_spaced_and_begin_at_0() -> None:
    assert sorted(spaced_steps(4, 100)) == [0, 25, 50, 75]
    assert sorted(spaced_steps(10, 3)) == [0, 1, 2]
    assert spaced_steps(0, 100) == frozenset()


@pytest.mark.parametrize("method", ["dm", "dsa", "dd"])
def test_run_keeps_pictures_of_its_first_iterates(method: str, tmp_path: Path) -> None:
    loops = {"dsa": {"outer_steps": 1, "inner_epochs": 1}, "dd": {"steps": 2, "epochs": 1}}.get(method, {})
    recipe = make_recipe_of(method, **loops)
    condensed = METHODS[method].condense(DATA, recipe, make_run(tmp_path, recipe))
    first, second = read_snapshots(tmp_path, condensed)
    assert (first.step, second.step) == (0, 2)
    assert 0 <= first.seconds <= second.seconds
    assert not torch.equal(first.images, second.images)
    without = METHODS[method].condense(DATA, recipe, RunContext(seed=1, compute=CPU))
    assert torch.equal(condensed.images, without.images)


def test_first_picture_is_the_initial_set(tmp_path: Path) -> None:
    recipe = make_recipe_of("dm")
    condensed = METHODS["dm"].condense(DATA, recipe, make_run(tmp_path, recipe))
    still = make_recipe_of("dm", lr=1e-30)
    initial = METHODS["dm"].condense(DATA, still, RunContext(seed=1, compute=CPU))
    assert torch.equal(read_snapshots(tmp_path, condensed)[0].images, to_pixels(initial.images))


def test_sets_learned_at_once_have_their_own_pictures(tmp_path: Path) -> None:
    recipes = [make_recipe_of("dm", ipc) for ipc in (1, 2)]
    recipes = [dataclasses.replace(recipe, lr=1.0) for recipe in recipes]
    sets = condense_sizes(DATA, recipes, make_run(tmp_path, recipes[0]))
    assert [len(read_snapshots(tmp_path, condensed)[1].images) for condensed in sets] == [3, 6]


def test_pictures_of_a_partition_are_decoded(tmp_path: Path) -> None:
    recipe = make_recipe_of("dm", partition=2)
    condensed = METHODS["dm"].condense(DATA, recipe, make_run(tmp_path, recipe))
    assert len(condensed.stored_images) == 6
    assert read_snapshots(tmp_path, condensed)[0].images.shape == (24, *condensed.images.shape[1:])


@pytest.mark.parametrize("stop", [1, 3])
def test_interrupted_run_has_all_pictures(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    recipe = make_recipe_of("dm")
    for name in ("undisturbed", "interrupted"):
        (tmp_path / name).mkdir()
    expected = METHODS["dm"].condense(DATA, recipe, make_run(tmp_path / "undisturbed", recipe))
    run = make_run(tmp_path / "interrupted", recipe)
    run.progress = StopAtStep(run, stop)
    with pytest.raises(Interrupted):
        METHODS["dm"].condense(DATA, recipe, run)
    METHODS["dm"].condense(DATA, recipe, make_run(tmp_path / "interrupted", recipe))
    pairs = zip(*(read_snapshots(tmp_path / name, expected) for name in ("undisturbed", "interrupted")), strict=True)
    assert all(first.step == second.step and torch.equal(first.images, second.images) for first, second in pairs)


def test_pictures_have_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 7 * 3 * 64 * 64)
    monkeypatch.setattr(snapshots, "MAX_SIDE", 64)
    condensed = make_set(make_data(size=80), ipc=4)
    write_snapshot(tmp_path, 5, condensed)
    (snapshot,) = read_snapshots(tmp_path, condensed)
    assert snapshot.images.shape == (6, 3, 64, 64)
    assert snapshot.indices.tolist() == [0, 1, 4, 5, 8, 9]
    monkeypatch.setattr(snapshots, "MAX_BYTES", 2 * 3 * 64 * 64)
    assert choose_images(condensed).tolist() == [0, 4]  # the first classes


def test_small_sets_are_stored_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condensed = make_set(make_data(), ipc=4)
    monkeypatch.setattr(snapshots, "MAX_BYTES", 1)
    monkeypatch.setattr(snapshots, "MAX_WHOLE_BYTES", condensed.images.numel())
    write_snapshot(tmp_path, 5, condensed)
    monkeypatch.setattr(snapshots, "MAX_WHOLE_BYTES", condensed.images.numel() - 1)
    write_snapshot(tmp_path, 6, condensed)
    whole, part = read_snapshots(tmp_path, condensed)
    assert whole.find_problem(condensed) == "" and whole.indices.tolist() == list(range(len(condensed)))
    assert part.find_problem(condensed) == "they have only some images of their set, or in a smaller size"


def test_images_are_stored_in_class_order(tmp_path: Path) -> None:
    condensed = make_set(make_data(), ipc=2)
    order = torch.arange(len(condensed)).view(-1, 2).T.flatten()  # 0, 2, 4, 1, 3, 5
    mixed = dataclasses.replace(condensed, images=condensed.images[order], labels=condensed.labels[order])
    write_snapshot(tmp_path, 5, mixed)
    (snapshot,) = read_snapshots(tmp_path, mixed)
    assert torch.equal(mixed.labels[snapshot.indices], condensed.labels)
    assert torch.equal(snapshot.images, to_pixels(condensed.images))


def test_damaged_or_foreign_pictures_are_an_error(tmp_path: Path) -> None:
    condensed: CondensedSet = make_set(make_data())
    assert read_snapshots(tmp_path, condensed) == []
    write_snapshot(tmp_path, 0, condensed)
    path = tmp_path / "snapshots/dm-2/0.safetensors"
    other = make_set(make_data(size=4))
    with pytest.raises(UserError, match="is not a snapshot of dm-2: delete it"):
        read_snapshots(tmp_path, other)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="damaged"):
        read_snapshots(tmp_path, condensed)
