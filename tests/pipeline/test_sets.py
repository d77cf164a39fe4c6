"""Test how set files are found and described."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import condenset as cs
from condenset import CondensedSet, UserError
from condenset.pipeline.config import plan_to_toml
from condenset.pipeline.sets import find_scores, find_sets, set_metadata, set_summary, shortest_names
from condenset.training.scores import format_accuracy
from helpers.plans import SPLITS, execute_in, make_tiny_plan


def test_the_sets_of_a_directory_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "cab":
        (tmp_path / f"{name}.safetensors").touch()
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *arguments: reversed(sorted(glob(*arguments))))
    assert [path.stem for path in find_sets(tmp_path)] == ["a", "b", "c"]


def test_a_directory_without_sets_is_an_error(tmp_path: Path) -> None:
    tmp_path = tmp_path / "my run"
    tmp_path.mkdir()
    with pytest.raises(UserError, match=r"is neither a run nor a directory of set files \(\.safetensors\)"):
        find_sets(tmp_path)
    (tmp_path / "recipe.toml").write_text(plan_to_toml(make_tiny_plan()))
    with pytest.raises(UserError, match=r"is an unfinished run without a set: finish it with '.* resume '/.*/my run''"):
        find_sets(tmp_path)
    (tmp_path / "evaluation.toml").touch()
    with pytest.raises(UserError, match="is an evaluation, which has no sets"):
        find_sets(tmp_path)
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(UserError, match=r"is an experiment: its sets are in the directories of .*parts"):
        find_sets(tmp_path)


def test_a_run_has_its_sets_in_the_order_of_its_jobs(tmp_path: Path) -> None:
    plan = make_tiny_plan()
    (tmp_path / "recipe.toml").write_text(plan_to_toml(plan))
    execute_in(tmp_path, plan)
    (tmp_path / "sets" / "a.safetensors").touch()  # a file of the user
    assert [path.stem for path in find_sets(tmp_path)] == ["random-1", "dm-1"]
    (tmp_path / "sets" / "random-1.safetensors").unlink()
    with pytest.warns(UserWarning, match="is an unfinished run with 1 of 2 sets: finish it with"):
        assert [path.stem for path in find_sets(tmp_path)] == ["dm-1"]


def test_scores_come_from_undamaged_results(tmp_path: Path) -> None:
    plan = make_tiny_plan()
    (tmp_path / "recipe.toml").write_text(plan_to_toml(plan))
    record = execute_in(tmp_path, plan)[1]
    file, results = tmp_path / "sets" / "dm-1.safetensors", tmp_path / "results.json"
    condensed = CondensedSet.load(file)
    assert find_scores(condensed, file) == f"{format_accuracy(record)} % (2 × {record['network']})"
    results.write_text(results.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(UserError, match="is damaged: a record does not match its checksum"):
        find_scores(condensed, file)


def test_names_are_as_short_as_possible() -> None:
    files = ["/r/a/sets/x.s", "/r/b/sets/x.s", "/r/b/y.s"]
    assert shortest_names([Path(file) for file in files]) == ["a/sets/x.s", "b/sets/x.s", "y.s"]
    assert shortest_names([Path("/r/a/x.s")]) == ["x.s"]


def test_a_set_without_provenance_can_be_described() -> None:
    condensed = cs.condense(SPLITS.train, "random", ipc=1, device="cpu")
    bare = dataclasses.replace(condensed, provenance={})
    assert set_summary(bare)["images"] == set_summary(condensed)["images"] == "2 of 3x8x8, 2 classes"


def test_a_summary_has_the_recipe_and_the_source(tmp_path: Path) -> None:
    execute_in(tmp_path, make_tiny_plan())
    condensed = CondensedSet.load(tmp_path / "sets" / "dm-1.safetensors")
    summary = set_summary(condensed)
    assert summary["labels"] == "hard"
    assert "iterations=2" in summary["recipe"]
    assert "source" not in summary
    with_source = dataclasses.replace(condensed, provenance={**condensed.provenance, "source": "a/b.npz"})
    assert set_summary(with_source)["source"] == "a/b.npz"
    metadata = set_metadata(condensed)
    assert (metadata["images"], metadata["shape"], metadata["recipe"]["iterations"]) == (2, [3, 8, 8], 2)
