"""The list of runs below a directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from condenset.runs import listing
from condenset.runs.listing import RunList, find_runs
from helpers.run_directories import write_run


def test_runs_are_found_at_any_level(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "group" / "b")
    write_run(tmp_path / "a" / "parts" / "c")  # of the run a
    write_run(tmp_path / ".hidden")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "recipe.toml").write_text("of another program")
    assert [path.relative_to(tmp_path).as_posix() for path in find_runs(tmp_path)] == ["a", "group/b"]
    assert [run.name for run in RunList(tmp_path / "a").read()] == ["a"]


def test_a_summary_names_dataset_methods_and_state(tmp_path: Path) -> None:
    write_run(tmp_path / "finished")
    write_run(tmp_path / "active", state="running", job="dm-10", step=1, total=4)
    write_run(tmp_path / "damaged", recipe="# condenset 0.0: [[", state=3)
    os.utime(tmp_path / "damaged" / "status.json", (1, 1))
    runs = {run.name: run for run in RunList(tmp_path).read()}
    assert next(iter(runs)) == "active"  # first
    run = runs["finished"]
    assert (run.kind, run.dataset, run.methods, run.status.state) == ("run", "digits", ("random", "dm"), "finished")
    assert run.status.finished_jobs == {"dm-10": 0.5} and not run.has_report
    assert (runs["damaged"].dataset, runs["damaged"].methods, runs["damaged"].status.state) == ("", (), "not running")


def test_evaluations_and_experiments(tmp_path: Path) -> None:
    for name, text in (
        ("experiment", 'experiment = "sizes"\ndataset = "/data/toy.npz"\n'),
        ("evaluation", '[[jobs]]\nfile = "/runs/sets/dm-1.safetensors"\nmade_from = "cifar10"\n'),
    ):
        write_run(tmp_path / name)
        (tmp_path / name / "recipe.toml").unlink()
        (tmp_path / name / f"{name}.toml").write_text(f"# condenset 0.0: \n{text}")
    runs = {run.name: (run.kind, run.dataset, run.methods) for run in RunList(tmp_path).read()}
    assert runs == {
        "experiment": ("experiment", "toy.npz", ("sizes",)),
        "evaluation": ("evaluation", "cifar10", ("dm-1",)),
    }


def test_changes_are_seen_and_deleted_runs_are_left_out(tmp_path: Path) -> None:
    runs = RunList(tmp_path)
    directory = write_run(tmp_path / "a")
    (first,) = runs.read()
    assert runs.read() == [first] and runs.read()[0] is first  # not read again
    (directory / "report.html").write_text("page")
    assert runs.read()[0].has_report
    (directory / "recipe.toml").unlink()
    assert runs.read() == []


def test_only_listed_runs_are_found_by_name(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "runs" / "group" / "a")
    write_run(tmp_path / "outside")
    runs = RunList(tmp_path / "runs")
    assert runs.find("group/a") == directory
    for name in ("../outside", "group/../group/a", str(directory), "group", "", "."):
        assert runs.find(name) is None


def test_the_number_of_runs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write_run(tmp_path / f"{number}")
    monkeypatch.setattr(listing, "MAX_RUNS", 3)
    assert len(find_runs(tmp_path)) == 3
