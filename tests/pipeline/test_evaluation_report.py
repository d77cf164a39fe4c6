"""The report of an evaluation: the labels of its sets, what it compares, and how to repeat it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import condenset as cs
from condenset.pipeline.evaluation.config import read_evaluation
from condenset.pipeline.report.content import collect_content
from condenset.report.html.answer import build_answer
from condenset.report.html.methods import build_methods
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner, write_npz

CPU = ("--device", "cpu")
NETWORK = TINY_NETWORK[1]


def condense_random(condenset: CommandRunner, **datasets: Path) -> None:
    """Write a run with a set of random images for each dataset."""
    for name, dataset in datasets.items():
        assert condenset("condense", dataset, "--method", "random", "--ipc", 1, *CPU, "--out", name).code == 0


def test_labels_name_set_and_network(condenset: CommandRunner, toy: Path) -> None:
    condense_random(condenset, x=toy, y=toy)
    assert condenset("evaluate", "x", "y", *TINY_NETWORK, *TINY_EVALUATION, "--out", "e").code == 0
    page = cs.write_report("e", verbose=False).read_text()
    assert "Evaluation e" in page and '<section id="classes"' in page
    content = collect_content(Path("e"))
    rows = build_methods(content).values["rows"]
    assert [row[0].text for row in rows] == [f"{name}/sets/random-1 on {NETWORK}" for name in "xy"]
    assert "test accuracy" in build_answer(content).values["sentence"]


def test_sets_with_different_test_images_are_not_compared(condenset: CommandRunner, toy: Path) -> None:
    other = write_npz(toy.with_name("other.npz"), seed=1)
    condense_random(condenset, x=toy, y=other)
    assert condenset("evaluate", "x", "y", *TINY_NETWORK, *TINY_EVALUATION, "--out", "e").code == 0
    content = collect_content(Path("e"))
    sets = [f"x/sets/random-1 on {NETWORK}, tested on toy.npz", f"y/sets/random-1 on {NETWORK}, tested on other.npz"]
    assert [record["label"] for record in content.records] == sets
    answer = build_answer(content).values
    assert answer["sentence"] == "The accuracies of sets that are tested on different images cannot be compared."
    assert answer["bars"] == []
    assert all(f"{path} (test images: fingerprint " in content.settings["dataset"] for path in (toy, other))


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--protocol", "modern", "--epochs", 1),
        ("--dataset", "other.npz", "--seed", 3),
        ("--network", "own"),
        ("--network", "mlp(width=4),mlp(width=8)", "--augment", "none"),
    ],
)
def test_command_repeats_the_evaluation(condenset: CommandRunner, toy: Path, options: tuple[object, ...]) -> None:
    write_npz(Path("other.npz"), seed=1)
    for name, seed, network in (("x", 0, "mlp(width=4)"), ("y", 1, "mlp(width=8)")):
        run = ("--method", "random", "--ipc", 1, "--network", network, *TINY_EVALUATION, "--no-whole", "--seed", seed)
        assert condenset("run", toy, *run, *CPU, "--out", name).code == 0
    network = () if "--network" in options else ("--network", "mlp(width=4)")
    assert condenset("evaluate", "x", "y", *options, *network, *CPU, "--out", "e").code == 0
    program, *words = shlex.split(collect_content(Path("e")).settings["command"])
    assert program == "condenset" and condenset(*words, *CPU, "--out", "f").code == 0
    assert read_evaluation(Path("f/evaluation.toml")) == read_evaluation(Path("e/evaluation.toml"))
