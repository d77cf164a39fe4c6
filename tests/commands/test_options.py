"""Options reach what they are for, command by command."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from shell import TINY_NETWORK, Condenset, write_npz

from condenset import Pool, cli_run, experiments, load, workflow
from condenset.experiments.outcomes import Outcome, Table
from condenset.plans import Wishes
from condenset.report.charts import new_chart
from condenset.runs import Run

PLACE = ("--seed", 6, "--device", "cpu", "--precision", "bfloat16", "--memory", "1K", "--size", 9)


SCORED = ("--nets", 4, "--epochs", 5, "--whole-epochs", 7)


LEARNED = ("--iterations", 8, "--lr", 0.5, "--init", "noise", "--augment", "crop")


FOLDERS = ("--data-dir", "d", "--out", "o", "--overwrite", "--json")


@pytest.mark.parametrize("command", ["run", "compare", "condense"])
def test_every_option_is_taken(command: str, condenset: Condenset, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(cli_run, "_begin", lambda *args: taken.extend(args))
    options = [
        "--method",
        "dm",
        "--ipc",
        "3,4",
        "--ipc",
        5,
        "--network",
        "mlp",
        "--set",
        "momentum=0.25",
        "--allow-fewer",
    ]
    options += [*PLACE, *FOLDERS]
    options += SCORED if command != "condense" else ()
    options += LEARNED
    assert condenset(command, "digits", *options).code == 0
    wishes, dataset, config, place, data_dir, out, overwrite, as_json = taken
    assert isinstance(wishes, Wishes)
    learned = {"iterations": 8, "lr": 0.5, "init": "noise", "augment": "crop"}
    assert wishes.recipe == {"network": "mlp", "allow_fewer": True, "momentum": 0.25, **learned}
    assert (wishes.methods, wishes.ipcs, wishes.evaluate) == (("dm",), (3, 4, 5), command != "condense")
    if command != "condense":
        assert wishes.protocol == {"network": "mlp", "augment": "crop", "nets": 4, "epochs": 5}
        assert wishes.whole_epochs == 7
    assert place == {"seed": 6, "device": "cpu", "precision": "bfloat16", "memory": 1024, "size": 9}
    assert (dataset, config, data_dir, out) == ("digits", None, Path("d"), Path("o"))
    assert overwrite and as_json


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Run, dict[str, Any]]]:
    """The runs of experiments, and what was asked of them; none is done."""
    found: list[tuple[Run, dict[str, Any]]] = []

    def perform(name: str, splits: Any, run: Run, folder: Path, **asked: Any) -> Outcome:
        found.append((run, {"name": name, "known_as": splits.train.name, **asked}))
        (folder / "parts").mkdir(exist_ok=True)
        return Outcome(records=[], table=Table(("a",), [("b",)]), draw=lambda: new_chart()[0])

    monkeypatch.setattr(experiments, "perform", perform)
    return found


def test_every_option_of_an_experiment_is_taken_and_kept_over_a_resume(
    condenset: Condenset, toy: Path, performed: list[tuple[Run, dict[str, Any]]]
) -> None:
    options = ["--methods", "random,dm", "--ipc", "3, 1", "--set", "dm.lr=2", "--nets", 4, "--epochs", 5]
    options += ["--whole-epochs", 7, "--sets", 2, "--seed", 6, "--precision", "bfloat16", "--memory", "1K"]
    options += ["--device", "cpu", "--size", 8, "--out", "a"]
    assert condenset("paper", "sizes", "--dataset", toy, "--scale", "tiny", *options).code == 0
    assert condenset("resume", "a").code == 0
    assert condenset("resume", "a", "--memory", "2K").code == 0
    assert [run.memory for run, _ in performed] == [1024, 1024, 2048]
    for run, asked in performed:
        wishes = asked["wishes"]
        assert (wishes.methods, wishes.ipcs, wishes.by_method) == (("random", "dm"), (3, 1), {"dm": {"lr": 2.0}})
        assert (wishes.protocol, wishes.whole_epochs) == ({"nets": 4, "epochs": 5}, 7)
        assert (asked["name"], asked["scale"], asked["sets"], asked["dataset"]) == ("sizes", "tiny", 2, str(toy))
        assert (run.seed, run.place.precision) == (6, "bfloat16")
    assert tomllib.loads(Path("a/experiment.toml").read_text())["size"] == 8


def test_data_that_moved_are_found_again(condenset: Condenset, tmp_path: Path) -> None:
    write_npz(tmp_path / "toy.npz")
    assert condenset("data", "import", "toy.npz", "mine", "--data-dir", "one", "--no-flip").code == 0
    assert not load("mine", data_dir="one").train.can_flip
    made = ("condense", "mine", "--data-dir", "one", "--method", "random", "--ipc", 1, "--device", "cpu")
    assert condenset(*made, "--out", "a").code == 0
    shutil.move("one", "two")
    assert "mine" in condenset("resume", "a").complaint
    assert condenset("resume", "a", "--data-dir", "two").code == 0


def test_a_run_goes_on_where_its_data_were_moved_to(
    condenset: Condenset, toy: Path, tmp_path: Path, performed: list[tuple[Run, dict[str, Any]]]
) -> None:
    made = ("--ipc", 1, "--device", "cpu", "--out")
    assert condenset("condense", toy, "--method", "random", *made, "a").code == 0
    assert condenset("paper", "sizes", "--dataset", toy, "--scale", "tiny", *made, "b").code == 0
    shutil.move(toy, tmp_path / "other.npz")
    write_npz(tmp_path / "wrong.npz", seed=1)
    for folder in ("a", "b"):
        assert "--dataset" in condenset("resume", folder).complaint
        assert f"wrong.npz is not the data that {folder} began" in (
            condenset("resume", folder, "--dataset", "wrong.npz").complaint
        )
        assert condenset("resume", folder, "--dataset", "other.npz").code == 0
    assert [asked["dataset"] for _, asked in performed] == [str(toy), str(toy)]  # what is told stays one dataset
    assert [asked["known_as"] for _, asked in performed] == [toy.stem] * 2  # and so do the defaults of its name


def test_evaluate_fits_images_to_the_size_and_takes_the_seed(
    condenset: Condenset, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def evaluate_file(file: Path, run: Run, loaded: object, fields: object, source: object, seed: object = None) -> Any:
        asked.append((fields, source, seed, run.place.precision))
        return {"method": "dm", "ipc": 1, "network": None, "condense_seconds": None}

    monkeypatch.setattr(workflow, "evaluate_file", evaluate_file)
    options = [
        "--dataset",
        "pets",
        "--network",
        "mlp",
        "--nets",
        4,
        "--epochs",
        5,
        "--augment",
        "none",
        "--own-steps",
        "--seed",
        0,
    ]
    options += ["--device", "cpu", "--precision", "bfloat16", "--size", 9, "--data-dir", "d"]
    assert condenset("evaluate", "a.safetensors", *options).code == 0
    fields = {"network": "mlp", "nets": 4, "epochs": 5, "augment": "none", "own_steps": True}
    assert asked == [(fields, {"dataset": "pets", "data_dir": Path("d"), "size": 9}, 0, "bfloat16")]


def test_own_steps_stand_in_place_of_a_training(condenset: Condenset, toy: Path) -> None:
    quick = ("--set", "iterations=1", "--set", "steps=1", "--set", "epochs=1", *TINY_NETWORK)
    assert (
        condenset(
            "run", toy, "--ipc", 1, "--method", "dd", *quick, "--no-whole", "--epochs", 2, "--nets", 2, "--out", "r"
        ).code
        == 0
    )
    refused = condenset("evaluate", "r", "--own-steps", "--epochs", 5)
    assert refused.code == 2
    assert "own_steps stands in place of epochs: give the one or the other" in refused.complaint
    scored = condenset("evaluate", "r", "--own-steps", "--config", "r/recipe.toml", "--json")
    (record,) = json.loads(scored.out)
    assert (record["own_steps"], len(record["accuracies"])) == (True, 2)


def test_a_pool_has_the_groups_and_the_seed_asked_for(condenset: Condenset, toy: Path) -> None:
    options = ("--num", 1, *TINY_NETWORK, "--epochs", 0, "--edges", "0,50", "--seed", 5, "--precision", "bfloat16")
    assert condenset("networks", "train-pool", toy, "--out", "p", *options).code == 0
    about = Pool.load("p").about
    assert (about["edges"], about["seed"], about["epochs"], about["precision"]) == ([0.0, 50.0], 5, 0, "bfloat16")
    assert about["network"].startswith("convnet(width=8, depth=1")
