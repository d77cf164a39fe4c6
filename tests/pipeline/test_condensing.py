"""A stopped job continues on the engine that it began on, with the sizes that it learned at once."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from condenset import UserError
from condenset.pipeline import condensing
from condenset.pipeline.condensing import load_or_condense
from condenset.pipeline.plan import Plan
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from helpers.command_line import read_files
from helpers.local_engine import LocalEngine
from helpers.plans import CPU, SPLITS, execute_in, make_tiny_plan, replace_dm


def interrupt(*arguments: object, **keywords: object) -> NoReturn:
    raise KeyboardInterrupt


def stop_at(function: str, directory: Path, plan: Plan, engine: LocalEngine | None) -> None:
    """Execute a plan until it calls a function that condenses."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(condensing, function, interrupt)
        execute_in(directory, plan, engine=engine)


@pytest.mark.parametrize(
    ("engine", "other", "message"),
    [
        (LocalEngine(), None, r"dm-1 has shards: continue with engine='ray', or delete \S+tasks to start again"),
        (
            None,
            LocalEngine(),
            r"dm-1 has a checkpoint of one process: continue with engine='local', or delete \S+point\* ",
        ),
    ],
)
def test_another_engine_does_not_lose_the_work_of_an_unfinished_set(
    engine: LocalEngine | None,
    other: LocalEngine | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    plan = make_tiny_plan(methods=("dm",))
    stop_at("_save_sets", tmp_path, plan, engine)
    files = read_files(tmp_path)
    with pytest.raises(UserError, match=f"the unfinished set of {message}"):
        execute_in(tmp_path, plan, engine=other)
    assert read_files(tmp_path) == files
    (record,) = execute_in(tmp_path, plan, engine=engine)
    assert "accuracies" in record


def test_shards_of_an_experiment_are_found_in_its_directory(tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("dm",))
    stop_at("_save_sets", tmp_path, plan, LocalEngine())
    (job,) = plan.condense_jobs
    assert job.recipe is not None
    run = RunContext(compute=CPU, directory=tmp_path / "part", shared_directory=tmp_path, job=job.name)
    with pytest.raises(UserError, match="dm-1 has shards"):
        load_or_condense(tmp_path / "part" / "condensed.safetensors", "dm", job.recipe, SPLITS.train, run)


@pytest.mark.parametrize(("num_before", "num_after"), [(3, 1), (1, 3)])
def test_resumed_shards_have_the_same_sizes_at_once(
    num_before: int, num_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_tiny_plan(methods=("dm",), ipcs=(1, 2, 3))
    replace_dm(monkeypatch, num_that_fit=lambda *arguments: num_before)
    stop_at("_save_sets", tmp_path, plan, LocalEngine())
    replace_dm(monkeypatch, num_that_fit=lambda *arguments: num_after)
    together = [record.get("together") for record in execute_in(tmp_path, plan, engine=LocalEngine())]
    assert together == ([[1, 2, 3]] * 3 if num_before == 3 else [None] * 3)


@pytest.mark.parametrize("engine", [None, LocalEngine()])
def test_shards_of_a_saved_set_are_removed_after_a_kill(engine: LocalEngine | None, tmp_path: Path) -> None:
    plan = make_tiny_plan(methods=("dm",))
    stop_at("remove_shards", tmp_path, plan, LocalEngine())
    assert (tmp_path / "tasks").exists()
    execute_in(tmp_path, plan, engine=engine)
    assert not (tmp_path / "tasks").exists()
