"""`--protocol`: which protocol a run, an evaluation and an experiment use, record and print."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from condenset import Protocol
from helpers.command_line import TINY_NETWORK, CommandRunner, read_records
from helpers.evaluations import evaluate, read_table

RANDOM = ("--ipc", 1, "--method", "random", *TINY_NETWORK, "--nets", 2, "--epochs", 2, "--no-whole")


def test_a_run_records_its_protocol_and_evaluate_repeats_it(condenset: CommandRunner, toy: Path) -> None:
    result = condenset("run", toy, *RANDOM, "--protocol", "modern", "--out", "a")
    assert result.out.splitlines()[0] == "networks: 2 × convnet(width=8, depth=1), modern"
    recipe = tomllib.loads(Path("a/recipe.toml").read_text())["protocol"]
    assert (recipe["schedule"], recipe["batch_size"], recipe["cutmix"], recipe["epochs"]) == ("modern", 64, 0.5, 2)
    (run_record,) = read_records(Path("a"))
    (record,) = evaluate(condenset, "a", "--device", "cpu", "--out", "b")
    assert record["protocol"] == run_record["protocol"] == "modern"
    assert record["accuracies"] == run_record["accuracies"]


def test_the_name_of_a_protocol_replaces_that_of_the_run(condenset: CommandRunner, toy: Path) -> None:
    condenset("run", toy, *RANDOM, "--out", "a")
    options = ("--protocol", "modern", "--epochs", 1, "--device", "cpu")
    columns = read_table(condenset("evaluate", "a", *options, "--out", "b").out)[0]
    assert columns[-1] == "convnet(width=8, depth=1), modern"
    (job,) = tomllib.loads(Path("b/evaluation.toml").read_text())["jobs"]
    fields = [job["protocol"][name] for name in ("schedule", "batch_size", "num_networks", "epochs")]
    assert fields == ["modern", 64, 2, 1]
    plan = json.loads(condenset("run", "--config", "a/recipe.toml", "--protocol", "modern", "--dry-run", "--json").out)
    assert plan["scoring"].startswith("2 × convnet(width=8, depth=1), modern protocol, 1500 epochs")


def test_a_small_whole_dataset_has_the_epochs_of_a_set(condenset: CommandRunner, toy: Path) -> None:
    options = ("--ipc", 1, "--method", "random", *TINY_NETWORK, "--protocol", "modern", "--dry-run", "--json")
    plan = json.loads(condenset("run", toy, *options).out)
    assert "modern protocol, 1500 epochs" in plan["whole dataset"]
    for whole_options, expected in (((), 7), (("--whole-epochs", 3), 3)):
        options = ("--ipc", 1, "--method", "random", *TINY_NETWORK, "--epochs", 2, "--nets", 1, *whole_options)
        assert condenset("run", toy, *options, "--out", "a", "--overwrite").code == 0
        again = ("run", "--config", "a/recipe.toml", "--epochs", 7, "--dry-run", "--json")
        plan = json.loads(condenset(*again).out)
        assert f", {expected} epochs" in plan["whole dataset"] and ", 7 epochs" in plan["scoring"]


def test_the_help_says_that_the_paper_protocol_trains_one_epoch_more(condenset: CommandRunner) -> None:
    assert Protocol(epochs=0).training_steps(10) == 1 and Protocol.modern(epochs=0).training_steps(10) == 0
    for command in ("run", "evaluate", "plan", "paper"):
        words = condenset(command, "--help").out.replace("│", " ").split()
        assert "protocol trains one more, as the code of the paper does." in " ".join(words)


def test_the_help_states_the_default_number_of_networks(condenset: CommandRunner) -> None:
    texts = {
        name: " ".join(condenset(name, "--help").out.replace("│", " ").split())
        for name in ("run", "plan", "compare", "paper", "evaluate")
    }
    assert texts["evaluate"].count("(default: as in the run of the sets, else") == 3  # nets, epochs and protocol
    for name, text in texts.items():
        assert ("5 networks score the random images" in text) == (name == "run")
        assert ("(default: 20; fewer for digits and small scales)" in text) == (name != "evaluate")


def test_invalid_protocols_are_refused(condenset: CommandRunner, toy: Path) -> None:
    assert "protocol must be one of paper, modern" in condenset("run", toy, *RANDOM, "--protocol", "x").error_line
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    error_line = condenset("evaluate", "a", "--own-steps", "--protocol", "modern").error_line
    assert "--own-steps replaces --protocol" in error_line
    paper = ("paper", "distribution", "--dataset", toy, "--scale", "tiny")
    assert "no use for --protocol" in condenset(*paper, "--protocol", "modern").error_line


def test_an_experiment_uses_the_protocol(condenset: CommandRunner, toy: Path) -> None:
    paper = ("paper", "sizes", "--dataset", toy, "--scale", "tiny", "--dry-run", "--json")
    assert "paper protocol" in json.loads(condenset(*paper).out)["scoring"]
    assert "modern protocol, 10 epochs" in json.loads(condenset(*paper, "--protocol", "modern").out)["scoring"]
