"""`--memory`: passed on to the run, stored for a resume, reported where it cannot be met."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path

import pytest

from condenset.data.image_data import Splits
from condenset.pipeline import run as pipeline_run
from condenset.pipeline.plan import Plan
from condenset.pipeline.results import Record
from condenset.runs.context import RunContext
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, read_records, sets_equal

OPTIONS = (*TINY_NETWORK, "--iterations", 2, "--ipc", 1)
BATCH_NORM = ("--network", "convnet(width=8, depth=1, norm='batch')", "--device", "cpu", "--iterations", 1)


@pytest.fixture
def memory_limits(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Record the memory limit of every executed run."""
    limits: list[int | None] = []
    execute_plan = pipeline_run.execute_plan

    def record_limit(plan: Plan, splits: Splits, run: RunContext) -> list[Record]:
        limits.append(run.memory_limit)
        return execute_plan(plan, splits, run)

    monkeypatch.setattr(pipeline_run, "execute_plan", record_limit)
    return limits


def test_the_limit_reaches_the_run_and_is_stored(
    condenset: CommandRunner, toy: Path, memory_limits: list[int | None]
) -> None:
    assert condenset("condense", toy, *OPTIONS, "--memory", "4GiB", "--out", "a").code == 0
    assert tomllib.loads(Path("a/recipe.toml").read_text())["memory_limit"] == 4 * 2**30
    assert condenset("resume", "a").code == 0
    assert condenset("resume", "a", "--memory", "1GB").code == 0
    assert condenset("condense", "--config", "a/recipe.toml", "--out", "b").code == 0
    assert condenset("condense", "--config", "a/recipe.toml", "--memory", "512M", "--out", "c").code == 0
    assert condenset("run", toy, *OPTIONS, *TINY_EVALUATION, "--no-whole", "--out", "d").code == 0
    assert memory_limits == [4 * 2**30, 4 * 2**30, 10**9, 4 * 2**30, 512 * 2**20, None]
    assert "memory_limit" not in tomllib.loads(Path("d/recipe.toml").read_text())
    assert sets_equal(Path("a/sets/dm-1.safetensors"), Path("d/sets/dm-1.safetensors"))


def test_a_limit_that_cannot_be_met_prints_one_warning(condenset: CommandRunner, toy: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = condenset("condense", toy, *OPTIONS, "--memory", "1K", "--out", "a")
    assert result.code == 0
    (line,) = [line for line in result.err.splitlines() if "warning" in line]
    assert line.startswith("condenset: warning: one class ")
    assert "UserWarning" not in result.err
    assert condenset("condense", toy, *OPTIONS, "--out", "b").code == 0


def test_a_limit_too_small_for_batch_norm_is_rejected_on_resume(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("condense", toy, *BATCH_NORM, "--ipc", 1, "--out", "a").code == 0
    assert "batch norm needs all 3 classes" in condenset("resume", "a", "--memory", "1K").error_line


def test_sizes_that_do_not_fit_together_are_learned_one_by_one(condenset: CommandRunner, toy: Path) -> None:
    command = ("condense", toy, *TINY_NETWORK, "--iterations", 2, "--ipc", "2,3")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # one class needs more than the limit
        assert condenset(*command, "--memory", "1K", "--out", "small").code == 0
    assert condenset(*command, "--memory", "4GiB", "--out", "large").code == 0
    assert ["together" in record for record in read_records(Path("small"))] == [False, False]
    assert [record["together"] for record in read_records(Path("large"))] == [[2, 3], [2, 3]]
