"""The paper's experiments and the comparison from the command line, as they are shipped; and killed again and again."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from shell import TINY_NETWORK, Command, Condenset, DieAtRename, names, same_set, write_npz

from condenset.experiments import EXPERIMENTS

AVAILABLE = [name for name, experiment in EXPERIMENTS.items() if experiment.perform]
FEW = ("--nets", 1, "--epochs", 1)
FILES = {"results.json", "table.md", "figure.png", "figure.svg", "experiment.toml"}


@pytest.mark.parametrize("name", AVAILABLE)
def test_an_experiment_at_the_scale_tiny(name: str, condenset: Condenset, tmp_path: Path) -> None:
    told = condenset("paper", name, "--scale", "tiny", "--device", "cpu", "--out", "a")
    assert told.code == 0
    assert {path.name for path in (tmp_path / "a").iterdir() if path.is_file()} >= FILES
    rows = (tmp_path / "a/table.md").read_text().splitlines()[4:]
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")]
    assert cells and all(cell in told.out for cell in cells)
    assert "its numbers mean nothing" in told.out


def without_times(value: Any) -> Any:
    """A record, but for what it took."""
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if "seconds" not in key and "peak" not in key}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "compare",
            "toy.npz",
            "--ipc",
            1,
            "--iterations",
            2,
            "--no-whole",
            *TINY_NETWORK,
            "--nets",
            1,
            "--epochs",
            1,
            "--set",
            "epochs=1",
        ),
        ("paper", "sota", "--dataset", "toy.npz", "--scale", "tiny", "--device", "cpu", *FEW),
    ],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_killed_over_and_over_it_comes_to_the_same(arguments: tuple[object, ...], tmp_path: Path) -> None:
    write_npz(tmp_path / "toy.npz")
    assert Command((*arguments, "--out", "whole"), tmp_path).wait().code == 0
    code, lives = -signal.SIGKILL, 0
    while code == -signal.SIGKILL and lives < 99:
        again = ("resume", "killed") if lives else (*arguments, "--out", "killed")
        code, lives = Command(again, tmp_path, DieAtRename(6)).wait().code, lives + 1
    assert code == 0 and lives > 2
    assert names(tmp_path / "killed") == names(tmp_path / "whole")
    results = [json.loads((tmp_path / folder / "results.json").read_text()) for folder in ("killed", "whole")]
    assert without_times(results[0]) == without_times(results[1])
    for path in (tmp_path / "whole").rglob("condensed.safetensors"):
        assert same_set(path, tmp_path / "killed" / path.relative_to(tmp_path / "whole"))
