"""`--zca`: sets with whitening are condensed, resumed, scored and shown."""

from __future__ import annotations

from pathlib import Path

import torch

import condenset as cs
from helpers.command_line import TINY_NETWORK, CommandRunner

FAST = ("--ipc", 1, "--iterations", 2, *TINY_NETWORK)


def test_a_run_with_whitening_is_scored_resumed_and_evaluated(condenset: CommandRunner, toy: Path) -> None:
    run = ("run", toy, "--method", "random,dm", *FAST, "--nets", 1, "--epochs", 1, "--no-whole")
    assert condenset(*run, "--zca", "--out", "a").code == 0
    sets = [cs.CondensedSet.load(path) for path in sorted(Path("a/sets").glob("*.safetensors"))]
    assert len(sets) == 2 and all(condensed.whitening is not None for condensed in sets)
    assert torch.equal(sets[0].whitening.matrix, sets[1].whitening.matrix)  # type: ignore[union-attr]
    assert "zca = true" in Path("a/recipe.toml").read_text()
    for command in (("resume", "a"), ("evaluate", "a", "--nets", 1, "--epochs", 1), ("show", "a")):
        assert condenset(*command).code == 0
    repeated = condenset("run", "--config", "a/recipe.toml", "--out", "b")
    assert repeated.code == 0
    assert torch.equal(cs.CondensedSet.load("b/sets/dm-1.safetensors").images, sets[0].images)


def test_whitening_can_be_left_out_of_a_preset_and_is_refused_in_one_line(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("condense", toy, *FAST, "--no-zca", "--out", "a").code == 0
    assert cs.CondensedSet.load("a/sets/dm-1.safetensors").whitening is None
    refused = condenset("condense", toy, "--method", "dm", *FAST, "--zca", "--set", "partition=2")
    assert refused.error_line == "partition must be 1 with --zca, but got 2"
    twice = condenset("condense", toy, *FAST, "--zca", "--set", "zca=true")
    assert "zca is given twice" in twice.error_line
