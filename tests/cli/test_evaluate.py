"""`condenset evaluate`: which sets, which data, which protocol."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from condenset.pipeline import sets
from condenset.runs.context import RunContext
from helpers.command_line import (
    RECORD_FIELDS,
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    read_records,
    write_npz,
)

QUICK = (*TINY_EVALUATION, "--device", "cpu")


def evaluate(condenset: CommandRunner, *arguments: object) -> list[dict[str, Any]]:
    """Run `condenset evaluate` and return its records."""
    records: list[dict[str, Any]] = json.loads(condenset("evaluate", *arguments, "--json").out)
    return records


def test_evaluate_finds_sets_and_their_data(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy.name, "--ipc", 1, *TINY, "--out", "a")
    scores = Path("results/scores.json")
    assert condenset("evaluate", "a", "a/sets/random-1.safetensors", *QUICK, "--out", scores).code == 0
    assert [record["method"] for record in json.loads(scores.read_text())] == ["dm", "random"]
    assert condenset("evaluate", "a", *QUICK, "--out", scores).error_line.startswith("results/scores.json exists")
    assert condenset("evaluate", "a", *QUICK, "--out", scores, "--overwrite").code == 0
    assert [list(record) for record in json.loads(scores.read_text())] == [RECORD_FIELDS]
    (record,) = evaluate(condenset, "a", "--config", "a/recipe.toml", "--device", "cpu")
    assert record["accuracies"] == read_records(tmp_path / "a")[1]["accuracies"]
    shutil.copy("a/condensed.safetensors", "moved.safetensors")
    assert "give --dataset" in condenset("evaluate", "moved.safetensors", *QUICK).error_line
    assert condenset("evaluate", "moved.safetensors", *QUICK, "--dataset", toy).code == 0
    assert evaluate(condenset, "a", *QUICK, "--seed", 5)[0]["seed"] == 5
    assert evaluate(condenset, "a", *QUICK, "--network", "mlp(width=8)")[0]["network"] == "mlp(width=8)"


def test_evaluate_warns_if_the_training_images_have_changed(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    write_npz(toy, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        (line,) = [line for line in condenset("evaluate", "a", *QUICK).err.splitlines() if "warning" in line]
    assert line.startswith("condenset: warning: a/condensed.safetensors was made from other training images than ")


def test_evaluate_takes_a_directory_of_sets(condenset: CommandRunner, toy: Path) -> None:
    methods = ("--method", "random", "--method", "mmd", "--set", "iterations=1")
    condenset("condense", toy, "--ipc", 1, *methods, "--out", "a")
    condenset("condense", toy, "--ipc", 2, "--ipc", 1, "--ipc", 3, "--method", "random", "--out", "b")
    records = evaluate(condenset, "b/sets", "a", *QUICK)
    assert [(record["method"], record["ipc"]) for record in records] == [("random", 1), ("random", 2), ("mmd", 1)]


def test_evaluate_passes_on_its_options(condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def evaluate_file(
        file: Path, run: RunContext, load: object, fields: object, source: object, seed: object = None
    ) -> dict[str, Any]:
        calls.append((fields, source, seed, run.compute.precision))
        return {"method": "dm", "ipc": 1, "network": None, "condense_seconds": None}

    monkeypatch.setattr(sets, "evaluate_file", evaluate_file)
    options = ["--dataset", "pets", "--network", "mlp", "--nets", 4, "--epochs", 5, "--augment", "none"]
    options += ["--own-steps", "--seed", 0, "--device", "cpu", "--precision", "bfloat16", "--size", 9]
    assert condenset("evaluate", "a.safetensors", *options, "--data-dir", "d").code == 0
    fields = {"network": "mlp", "num_networks": 4, "epochs": 5, "augment": "none", "learned_steps": True}
    assert calls == [(fields, {"dataset": "pets", "data_dir": Path("d"), "size": 9}, 0, "bfloat16")]


def test_own_steps_replace_epochs(condenset: CommandRunner, toy: Path) -> None:
    quick = ("--set", "iterations=1", "--set", "steps=1", "--set", "epochs=1", *TINY_NETWORK)
    protocol = ("--no-whole", "--epochs", 2, "--nets", 2)
    assert condenset("run", toy, "--ipc", 1, "--method", "dd", *quick, *protocol, "--out", "r").code == 0
    error_line = condenset("evaluate", "r", "--own-steps", "--epochs", 5).error_line
    assert "learned_steps" in error_line and "epochs" in error_line
    (record,) = evaluate(condenset, "r", "--own-steps", "--config", "r/recipe.toml")
    assert (record["learned_steps"], len(record["accuracies"])) == (True, 2)


def test_scores_are_printed_before_a_set_that_fails(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    result = condenset("evaluate", "a", "broken.safetensors", *QUICK)
    assert (result.code, len(result.out.splitlines())) == (2, 2) and "broken.safetensors is not" in result.err
    assert [record["ipc"] for record in evaluate(condenset, "a", "broken.safetensors", *QUICK)] == [1]


def test_evaluate_rejects_a_dataset_that_does_not_match(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    other = write_npz(tmp_path / "other.npz", (4, 4))
    error_line = condenset("evaluate", "a", "--dataset", other, *QUICK).error_line
    assert "2 classes" in error_line and "but got 3" in error_line
    large = write_npz(tmp_path / "large.npz", size=16)
    assert "image shape of the test set" in condenset("evaluate", "a", "--dataset", large, *QUICK).error_line
    assert "digitz" in condenset("evaluate", "a", "--dataset", "digitz", *QUICK).error_line
    for out in ("toy.npz/x.json", "/proc/x.json"):
        assert "cannot write to" in condenset("evaluate", "a", *QUICK, "--out", out).error_line
