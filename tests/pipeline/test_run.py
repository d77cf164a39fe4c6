"""Test how a run is started and resumed from Python."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from condenset import CondensedSet, Splits, UserError
from condenset.pipeline.config import read_plan
from condenset.pipeline.plan import Plan
from condenset.pipeline.request import RunRequest
from condenset.pipeline.run import resume_run, start_run
from condenset.runs.context import RunContext
from helpers.command_line import list_files, read_files, replace_test_images
from helpers.plans import SCORE_REQUEST

CPU: dict[str, Any] = {"device": "cpu"}


def test_a_run_leaves_its_recipe_results_and_set_in_a_new_directory(toy: Path) -> None:
    first, second = (start_run(SCORE_REQUEST, dataset="toy.npz", seed=2, memory_limit=2**30, **CPU) for _ in range(2))
    assert (first.directory, second.directory) == (Path("runs/toy"), Path("runs/toy-2"))
    assert first.records[0]["accuracies"] == second.records[0]["accuracies"]
    assert {"recipe.toml", "results.json", "sets/random-1.safetensors", "grid.png"} <= set(list_files(first.directory))
    plan = read_plan(first.directory / "recipe.toml")
    assert (plan.dataset, plan.seed, plan.memory_limit) == (str(toy), 2, 2**30)
    assert plan.test_fingerprint != ""


def test_settings_override_those_of_the_config(toy: Path) -> None:
    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), seed=2, memory_limit=2**30, **CPU)
    start_run(RunRequest(), config=Path("a/recipe.toml"), out=Path("b"), seed=3)
    plan, changed = (read_plan(Path(name) / "recipe.toml") for name in "ab")
    assert (changed.seed, changed.memory_limit, changed.jobs) == (3, plan.memory_limit, plan.jobs)


def test_the_session_surrounds_the_execution(toy: Path) -> None:
    events: list[object] = []

    @contextlib.contextmanager
    def session(plan: Plan, splits: Splits, run: RunContext) -> Iterator[None]:
        assert run.directory == Path("a") and (run.directory / "recipe.toml").exists()
        events.append([job.name for job in plan.jobs])
        yield
        events.append((run.directory / "results.json").exists())

    result = start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), session=session, **CPU)
    assert events == [["random-1"], True]
    files = read_files(Path("a"))
    assert resume_run(Path("a"), session=session).records == result.records
    assert events == [["random-1"], True] * 2
    assert read_files(Path("a")) == files


def test_a_stopped_run_is_resumed_with_changes(toy: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    @contextlib.contextmanager
    def stop(plan: Plan, splits: Splits, run: RunContext) -> Iterator[None]:
        raise Stop
        yield

    with pytest.raises(Stop):
        start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), session=stop, **CPU)
    assert list_files(Path("a")) == ["recipe.toml"]
    limits: list[int | None] = []

    def record_limit(plan: Plan, splits: Splits, run: RunContext) -> contextlib.AbstractContextManager[None]:
        limits.append(run.memory_limit)
        return contextlib.nullcontext()

    (tmp_path / "moved").mkdir()
    shutil.move(toy, tmp_path / "moved" / "data.npz")
    with pytest.raises(UserError, match="if the dataset has moved, give its path with --dataset or --data-dir"):
        resume_run(Path("a"))
    result = resume_run(Path("a"), moved_to="moved/data.npz", session=record_limit, memory_limit=2**30)
    assert (limits, result.records[0]["dataset"]) == ([2**30], str(toy))
    origin = CondensedSet.load("a/sets/random-1.safetensors").provenance["origin"]
    assert origin == {"dataset": str(tmp_path / "moved" / "data.npz")}


def test_changed_data_are_refused(toy: Path) -> None:
    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), **CPU)
    replace_test_images(toy)
    with pytest.raises(UserError, match=r"toy.npz has changed since a began: start a new run"):
        resume_run(Path("a"))
    with pytest.raises(UserError, match=r"other.npz is not the dataset that a began with"):
        resume_run(Path("a"), moved_to=str(shutil.copy(toy, "other.npz")))
    with pytest.raises(UserError, match="has changed since the config file was written"):
        start_run(RunRequest(), config=Path("a/recipe.toml"))


def test_invalid_arguments_are_refused(toy: Path) -> None:
    with pytest.raises(UserError, match="no dataset: give a name"):
        start_run(SCORE_REQUEST)
    with pytest.raises(UserError, match="--overwrite needs --out"):
        start_run(SCORE_REQUEST, dataset="toy.npz", overwrite=True, **CPU)
    with pytest.raises(UserError, match=r"b is not a run: it has no recipe.toml"):
        resume_run(Path("b"))
    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), **CPU)
    with pytest.raises(UserError, match=r"^a "):
        start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), **CPU)
    assert not Path("runs").exists()
    start_run(SCORE_REQUEST, dataset="toy.npz", out=Path("a"), overwrite=True, seed=5, **CPU)
    assert read_plan(Path("a/recipe.toml")).seed == 5
