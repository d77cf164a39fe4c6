"""Numbers and networks beyond every sensible size are refused before any work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import condenset as cs
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, list_files

HUGE = 10**12


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (("--method", "dm", "--iterations", HUGE), "iterations must be at most 100000000"),
        (("--method", "dm", "--set", f"batch_size={HUGE}"), "batch_size must be at most 100000000"),
        (("--method", "dm", "--set", "lr=1e39"), "lr must be at most 1e+09"),
        (("--method", "dd", "--set", "step_size=1e10"), "step_size must be at most 1e+09"),
        (("--method", "dd", "--set", "step_size=1000"), "step_size must be at most 100"),
        (("--method", "dd", "--set", f"steps={HUGE}"), "steps must be at most 1000"),
        (("--method", "dd", "--set", f"dd.epochs={HUGE}"), "epochs must be at most 1000"),
        (("--method", "dc", "--set", f"outer_steps={HUGE}"), "outer_steps must be at most 100000000"),
        (("--method", "dc", "--set", f"inner_epochs={HUGE}"), "inner_epochs must be at most 100000000"),
        (("--method", "ld", "--set", "ridge=1e300"), "ridge must be at most 1e+09"),
        (("--method", "random", "--nets", HUGE), "--nets must be at most 100000"),
        (("--method", "random", "--epochs", HUGE), "epochs must be at most 100000000"),
        (("--method", "herding", "--set", f"herding.epochs={HUGE}"), "epochs must be at most 100000000"),
    ],
)
def test_a_run_refuses_absurd_numbers(
    condenset: CommandRunner, toy: Path, options: tuple[object, ...], rule: str
) -> None:
    result = condenset("run", toy, "--ipc", 1, *options, "--device", "cpu", "--no-whole")
    assert result.error_line.startswith(f"{rule}, but got")
    assert list_files(toy.parent) == ["toy.npz"]


def test_other_commands_refuse_absurd_numbers(condenset: CommandRunner, toy: Path) -> None:
    paper = ("paper", "sizes", "--scale", "tiny", "--dataset", toy, "--device", "cpu")
    assert "--sets must be at most 100000" in condenset(*paper, "--sets", HUGE).error_line
    pool = condenset("networks", "train-pool", toy, "--num", HUGE, "--out", "pool", "--device", "cpu")
    assert "--num must be at most 100000" in pool.error_line
    assert list_files(toy.parent) == ["toy.npz"]


def test_a_network_that_does_not_fit_is_refused() -> None:
    """The weights of a wide layer on large images need more memory than any machine has."""
    data = cs.from_arrays(np.zeros((2, 2048, 2048), np.uint8), [0, 1])
    with pytest.raises(cs.UserError, match=r"^the network mlp\(width=4096\) needs about .* for its weights"):
        cs.condense(data, "dm", ipc=1, network="mlp(width=4096)", device="cpu", verbose=False)


@pytest.mark.parametrize("table", ["protocol", "whole", "jobs"])
def test_a_table_replaced_by_text_is_refused(condenset: CommandRunner, toy: Path, table: str) -> None:
    condenset("run", toy, "--ipc", 1, "--method", "random", *TINY_NETWORK, *TINY_EVALUATION, "--out", "a")
    recipe = Path("a/recipe.toml")
    tables = [part for part in recipe.read_text().split("\n\n") if not part.startswith((f"[{table}]", f"[[{table}]]"))]
    recipe.write_text("\n\n".join([f'{tables[0]}\n{table} = "x"', *tables[1:]]))
    assert condenset("resume", "a").error_line.startswith("a/recipe.toml")
