"""What belongs to whom: folders, sets and their data, and what is told of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from planned import CPU, NETWORK, SPLITS, go, plan_of
from shell import names

from condenset import Splits, UserError, folders, workflow
from condenset.methods import METHODS
from condenset.plans import Wishes, make_plan, to_toml
from condenset.presets import make_recipe
from condenset.recipes import Protocol, RandomRecipe
from condenset.runs import Run
from condenset.workflow import execute, find_sets
from plain import tiny_data


def test_somebody_elses_recipe_is_no_run_even_with_a_comment(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("# my soup\nleek = 3\n")
    (tmp_path / "results.json").write_text("mine")
    assert not folders.is_run(tmp_path)
    with pytest.raises(UserError, match="not empty and not a run of condenset"):
        folders.new_folder(tmp_path, overwrite=True)
    assert names(tmp_path) == ["recipe.toml", "results.json"]


def test_a_job_does_not_inherit_the_seconds_of_the_one_before(tmp_path: Path) -> None:
    plan = plan_of(methods=("mmd", "dm"))
    run = Run(place=CPU, folder=tmp_path, seconds_before=1000.0)  # as a resumed job leaves it
    records = execute(plan, SPLITS, run)
    assert all(record["condense_seconds"] < 1000 for record in records)


def test_set_files_of_a_folder_come_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "cab":
        (tmp_path / f"{name}.safetensors").touch()
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *args: reversed(sorted(glob(*args))))
    assert [path.stem for path in find_sets(tmp_path)] == ["a", "b", "c"]


def test_a_set_is_scored_by_its_own_seed_and_on_its_own_data_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(plan_of()))  # of a run on other data
    other = Splits(train=tiny_data([6, 6], seed=5), test=tiny_data([6, 6], seed=6))
    other = Splits(
        train=dataclasses.replace(other.train, name="other"), test=dataclasses.replace(other.test, name="other")
    )
    METHODS["random"](other.train, RandomRecipe(ipc=1), Run(place=CPU, seed=7)).save(tmp_path / "a.safetensors")
    run, fields = Run(place=CPU), {"nets": 1, "epochs": 1, "network": NETWORK}
    asked: list[object] = []

    def load(**source: object) -> Splits:
        asked.append(source["dataset"])
        return other

    record = workflow.evaluate_file(tmp_path / "a.safetensors", run, load, fields, {})
    assert (asked, record["seed"]) == (["other"], 7)
    assert workflow.evaluate_file(tmp_path / "a.safetensors", run, load, fields, {}, 3)["seed"] == 3


def test_a_record_has_the_learning_rate_of_the_images() -> None:
    recipe = {"iterations": 1, "outer": 1, "inner": 0, "network": NETWORK, "lr": 0.3}
    assert [each["condense_lr"] for each in go(plan_of(methods=("random", "dc"), recipe=recipe), None)] == [None, 0.3]


def test_a_network_for_the_whole_dataset_that_does_not_fit_is_refused_before_it_starts() -> None:
    base = plan_of(whole=None)
    deep = Protocol(network="convnet(depth=9)")
    with pytest.raises(UserError, match="depth=9"):
        make_plan(SPLITS.train, Wishes(), dataclasses.replace(base, whole=deep), dataset="tiny")


def test_cifar100_has_its_own_loops_from_50_images_on() -> None:
    loops = {ipc: make_recipe("dsa", ipc=ipc, name="cifar100", size=32).loops for ipc in (1, 10, 20, 50)}  # type: ignore
    assert loops == {1: (1, 1), 10: (10, 50), 20: (20, 25), 50: (10, 10)}
