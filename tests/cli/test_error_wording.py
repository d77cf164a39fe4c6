"""Errors name the options of the interface in use: flags on the command line, keywords in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import condenset as cs
from condenset import UserError
from condenset.errors import by_interface, option, option_name, use_flags
from helpers.command_line import TINY_NETWORK, CommandRunner
from helpers.reference_dm import tiny_data

FLAGS = {"allow_fewer": "--allow-fewer", "size": "--size", "num_networks": "--nets"}


def test_options_are_named_by_the_interface() -> None:
    assert (option("allow_fewer", True), option("size", 32), option("size")) == ("allow_fewer=True", "size=32", "size=")
    assert option("fit", "pad") == "fit='pad'"
    assert option_name("num_networks") == "num_networks"
    with use_flags(FLAGS.get):
        assert (option("allow_fewer", True), option("size", 32), option("size")) == (
            "--allow-fewer",
            "--size 32",
            "--size",
        )
        assert option("momentum", 0.5) == "--set momentum=0.5"  # a field without a flag
        assert option("clamp", True) == "--set clamp=true"
        assert (option_name("num_networks"), option_name("size")) == ("--nets", "size")
        assert by_interface(command_line="a", python="b") == "a"
    assert by_interface(command_line="a", python="b") == "b"


def test_classes_with_few_images(condenset: CommandRunner, toy: Path) -> None:
    hint = "give a smaller ipc, or {} to use all"
    assert hint.format("--allow-fewer") in condenset("run", toy, "--ipc", 50).error_line
    paper = condenset("paper", "sizes", "--dataset", toy, "--scale", "tiny", "--ipc", 50).error_line
    assert hint.format("--set allow_fewer=true") in paper and "share" not in paper
    with pytest.raises(UserError, match=r"or allow_fewer=True to use all, or ipc_share=0.1 for a share of each class"):
        cs.condense(cs.load(toy, verbose=False).train, "random", ipc=50, verbose=False)


def test_number_of_networks(condenset: CommandRunner, toy: Path) -> None:
    assert "--nets must be a whole number, 1 or more, but got 0" in condenset("run", toy, "--nets", 0).error_line
    pool = condenset("networks", "train-pool", toy, "--out", "p", "--num", 0).error_line
    assert "--num must be a whole number, 1 or more, but got 0" in pool
    data = tiny_data([2, 2])
    with pytest.raises(UserError, match=r"^num_networks must be a whole number, 1 or more, but got 0"):
        cs.evaluate(data, data, num_networks=0, verbose=False)


def test_fields_of_a_recipe_file_keep_their_names(condenset: CommandRunner, toy: Path) -> None:
    options = ("--ipc", 1, "--method", "random", *TINY_NETWORK, "--nets", 1, "--epochs", 0, "--no-whole")
    assert condenset("run", toy, *options, "--out", "r").code == 0
    recipe = Path("r/recipe.toml")
    recipe.write_text(recipe.read_text().replace("num_networks = 1", "num_networks = 0"))
    assert "recipe.toml: num_networks must be a whole number" in condenset("resume", "r").error_line


def test_missing_dataset(condenset: CommandRunner) -> None:
    error = condenset("run", "cifar10").error_line
    assert "get it with 'condenset data get cifar10'" in error and "with --data-dir" in error
    with pytest.raises(UserError, match=r"download it with download=True, .* with data_dir=$"):
        cs.load("cifar10", verbose=False)


@pytest.mark.parametrize("value", [3, b"x", ["a"]])
def test_directories_must_be_paths(value: object) -> None:
    data = tiny_data([2, 2])
    calls = [
        lambda: cs.condense(data, "random", ipc=1, directory=value, verbose=False),  # type: ignore[arg-type]
        lambda: cs.evaluate(data, data, directory=value, verbose=False),  # type: ignore[arg-type]
        lambda: cs.rank(["mlp"], data, tiny_data([2, 2], seed=1), directory=value, verbose=False),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(UserError, match="directory must be a path, but got"):
            call()
