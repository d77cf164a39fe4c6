"""A run done again: from its recipe, resumed, on other data, over an earlier one."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import TINY, TINY_NETWORK, Condenset, change_the_test, names, records_of, same_set, tree, write_npz


def test_a_recipe_fed_back_repeats_the_run_exactly(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, "--ipc", 2, *TINY, "--seed", 7, "--init", "noise", "--out", "a")
    assert condenset("run", "--config", "a/recipe.toml", "--out", "b").code == 0
    assert (tmp_path / "a" / "recipe.toml").read_bytes() == (tmp_path / "b" / "recipe.toml").read_bytes()
    for name in names(tmp_path / "a"):
        if name.endswith(".safetensors"):
            assert same_set(tmp_path / "a" / name, tmp_path / "b" / name)
    first, again = (records_of(tmp_path / name) for name in "ab")
    assert [record["accuracies"] for record in first] == [record["accuracies"] for record in again]
    assert (tmp_path / "a" / "grid.png").read_bytes() == (tmp_path / "b" / "grid.png").read_bytes()


def test_options_win_over_the_config(condenset: Condenset, toy: Path) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--seed", 7, "--out", "a")
    other = write_npz(Path("other.npz"), seed=5)
    options = ("--ipc", 3, "--seed", 8, "--iterations", 2, "--lr", 0.5, "--nets", 1, "--epochs", 4)
    assert condenset("run", other, "--config", "a/recipe.toml", *options, "--method", "dm", "--out", "b").code == 0
    before, after = (tomllib.loads(Path(name, "recipe.toml").read_text()) for name in "ab")
    assert after["dataset"] == str(other.absolute())
    assert after["seed"] == 8
    assert len(after["jobs"]) == 1
    assert after["jobs"][0] == {**before["jobs"][1], "ipc": 3, "iterations": 2, "lr": 0.5}
    assert after["protocol"] == {**before["protocol"], "nets": 1, "epochs": 4}


def test_resuming_a_finished_run_prints_it_again_and_changes_nothing(
    condenset: Condenset, toy: Path, tmp_path: Path
) -> None:
    ran = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    before = tree(tmp_path)
    again = condenset("resume", "a")
    assert (again.code, again.out) == (0, ran.out)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("change", [lambda path: write_npz(path, seed=1), change_the_test], ids=["all", "test"])
def test_resuming_on_other_data_is_refused(
    change: Callable[[Path], object], condenset: Condenset, toy: Path, tmp_path: Path
) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    assert condenset("condense", "--config", "a/recipe.toml", "--out", "b").code == 0
    shutil.copy(toy, "first.npz")
    change(toy)
    before = tree(tmp_path)
    assert f"{toy} is not the data that a began with" in condenset("resume", "a", "--dataset", toy).complaint
    assert condenset("resume", "a", "--dataset", "first.npz").code == 0
    decided = change is not change_the_test  # of a set alone, the test images decide nothing
    assert condenset("resume", "b").code == (2 if decided else 0)
    assert "is no longer the data that a began with" in condenset("resume", "a").complaint
    assert "is no longer the data" in condenset("run", "--config", "a/recipe.toml", "--out", "c").complaint
    assert tree(tmp_path) == before


def test_overwrite_removes_what_a_run_wrote_and_nothing_else(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, "--ipc", 2, *TINY, "--out", "a")
    condenset("show", "a")
    Path("a/notes.txt").write_text("mine")
    Path("a/sets/mine.safetensors").write_text("mine too")
    (tmp_path / "a" / ".checkpoint.x1.tmp").write_text("left by a kill")
    before = tree(tmp_path)
    assert "condenset resume a" in condenset("run", toy, "--ipc", 1, *TINY, "--out", "a").complaint
    assert tree(tmp_path) == before
    made = ("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 1)
    assert condenset(*made, "--out", "a", "--overwrite").code == 0
    made_anew = ["condensed.safetensors", "events.jsonl", "grid.png", "recipe.toml", "results.json"]
    assert names(tmp_path / "a") == sorted([*made_anew, "notes.txt", "sets/mine.safetensors"])
    assert Path("a/notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_run_is_never_overwritten(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    Path("photos").mkdir()
    Path("photos/cat.jpg").write_text("mine")
    Path("cooking").mkdir()
    Path("cooking/recipe.toml").write_text("soup = 'leek'")
    before = tree(tmp_path)
    for folder in ("photos", "cooking"):
        for more in ((), ("--overwrite",)):
            result = condenset("run", toy, "--ipc", 1, *TINY, "--out", folder, *more)
            assert f"{folder} is not empty and not a run of condenset" in result.complaint
    assert tree(tmp_path) == before
