"""--memory: from the command line to the run, kept over a resume, told of where it cannot be kept."""

from __future__ import annotations

import json
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
from shell import TINY_NETWORK, Condenset, same_set

import condenset as cs
from condenset import workflow
from condenset.methods import matching
from condenset.plans import Plan
from condenset.runs import Run
from plain import tiny_data


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The bound of every run that was carried out."""
    seen: list[int | None] = []
    execute = workflow.execute

    def note(plan: Plan, splits: cs.Splits, run: Run) -> list[dict[str, Any]]:
        seen.append(run.memory)
        return execute(plan, splits, run)

    monkeypatch.setattr(workflow, "execute", note)
    return seen


def test_a_bound_reaches_the_run_and_a_resumed_one_keeps_it(
    condenset: Condenset, toy: Path, bounds: list[int | None]
) -> None:
    tiny = (*TINY_NETWORK, "--iterations", 2, "--ipc", 1)
    assert condenset("condense", toy, *tiny, "--memory", "4GiB", "--out", "a").code == 0
    assert tomllib.loads(Path("a/recipe.toml").read_text())["memory"] == 4 * 2**30
    assert condenset("resume", "a").code == 0
    assert condenset("resume", "a", "--memory", "1GB").code == 0
    assert condenset("condense", "--config", "a/recipe.toml", "--out", "b").code == 0
    assert condenset("condense", "--config", "a/recipe.toml", "--memory", "512M", "--out", "c").code == 0
    assert condenset("run", toy, *tiny, "--nets", 1, "--epochs", 1, "--no-whole", "--out", "d").code == 0
    assert bounds == [4 * 2**30, 4 * 2**30, 10**9, 4 * 2**30, 512 * 2**20, None]
    assert "memory" not in tomllib.loads(Path("d/recipe.toml").read_text())
    assert same_set(Path("a/condensed.safetensors"), Path("d/condensed.safetensors"))


def test_a_bound_that_cannot_be_kept_is_told_in_a_line(condenset: Condenset, toy: Path) -> None:
    tiny = (*TINY_NETWORK, "--iterations", 2, "--ipc", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = condenset("condense", toy, *tiny, "--memory", "1K", "--out", "a")
    assert result.code == 0
    told = [line for line in result.err.splitlines() if "warning" in line]
    assert len(told) == 1
    assert told[0].startswith("condenset: warning: one class alone takes about ")
    assert "UserWarning" not in result.err
    assert condenset("condense", toy, *tiny, "--out", "b").code == 0


def test_a_resumed_run_with_batch_norm_is_refused_a_bound_at_once(condenset: Condenset, toy: Path) -> None:
    network = ("--network", "convnet(width=8, depth=1, norm='batch')", "--device", "cpu")
    assert condenset("condense", toy, *network, "--iterations", 1, "--ipc", 1, "--out", "a").code == 0
    assert "batch norm needs all 3 classes" in condenset("resume", "a", "--memory", "1K").complaint


def test_sizes_that_do_not_fit_at_once_are_learned_one_after_the_other(condenset: Condenset, toy: Path) -> None:
    tiny = ("--network", "convnet(width=8, depth=1, norm='batch')", "--device", "cpu", "--iterations", 1)
    told = condenset("condense", toy, *tiny, "--ipc", 3, "--memory", "1K", "--out", "a").complaint
    need = int(float(told.split("about ")[1].split(" KiB")[0]) * 1024) + 512
    assert condenset("condense", toy, *tiny, "--ipc", 3, "--memory", need, "--out", "a").code == 0
    assert condenset("condense", toy, *tiny, "--ipc", 2, "--ipc", 3, "--memory", need, "--out", "b").code == 0
    assert condenset("condense", toy, *tiny, "--ipc", 2, "--ipc", 3, "--memory", 2 * need, "--out", "c").code == 0
    records = [json.loads((Path(folder) / "results.json").read_text()) for folder in "bc"]
    assert ["together" in record for record in records[0]] == [False, False]
    assert [record["together"] for record in records[1]] == [[2, 3], [2, 3]]


def test_condense_takes_bytes_or_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    together = matching.classes_together
    monkeypatch.setattr(
        matching,
        "classes_together",
        lambda need, place, memory: (seen.append(memory), together(need, place, memory))[1],
    )
    tiny: dict[str, Any] = {"ipc": 1, "iterations": 1, "network": "convnet(width=8, depth=1)", "device": "cpu"}
    for memory in (None, 2**30, "1GiB"):
        cs.condense(tiny_data([4, 4]), **tiny, memory=memory)
    assert seen == [None, 2**30, 2**30]
    with pytest.raises(cs.UserError, match=r"memory must be a size .* but got 'lots'"):
        cs.condense(tiny_data([4, 4]), **tiny, memory="lots")
