"""Every option reaches the library, command by command."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from condenset import load
from condenset.data.image_data import Splits
from condenset.experiments import start
from condenset.experiments.config import ExperimentConfig
from condenset.experiments.types import ExperimentResult, Table
from condenset.pipeline import run as pipeline_run
from condenset.pipeline.request import RunRequest
from condenset.pipeline.results import RunResult
from condenset.report.charts import new_chart
from condenset.runs.context import RunContext
from helpers.command_line import CommandRunner, write_npz
from helpers.data_files import make_classes

COMPUTE_OPTIONS = ("--seed", 6, "--device", "cpu", "--precision", "bfloat16", "--memory", "1K")
ENGINE_OPTIONS = ("--engine", "ray", "--address", "auto", "--gpus-per-worker", 0.5)
LOAD_OPTIONS = ("--size", 9, "--fit", "pad", "--background", "red", "--white-level", 4095, "--nested", "--skip-bad")
METHOD_OPTIONS = ("--method", "dm", "--ipc", "3,4", "--ipc", 5, "--set", "momentum=0.25", "--allow-fewer")
SCHEDULE_OPTIONS = ("--schedule", "paper")
LEARNING_OPTIONS = ("--network", "mlp", "--iterations", 8, "--lr", 0.5, "--init", "noise", "--augment", "crop")
EVALUATION_OPTIONS = ("--nets", 4, "--epochs", 5, "--whole-epochs", 7)
FILE_OPTIONS = ("--data-dir", "d", "--out", "o", "--overwrite", "--snapshots", 3, "--json")


@pytest.mark.parametrize("command", ["run", "compare", "condense"])
def test_every_option_of_a_run_is_passed_on(
    command: str, condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[RunRequest, dict[str, Any]]] = []

    def start_run(request: RunRequest, **options: Any) -> RunResult:
        calls.append((request, options))
        result = RunResult(directory=Path("o"), records=[])
        options.pop("show_result")(result)
        return result

    monkeypatch.setattr(pipeline_run, "start_run", start_run)
    evaluates = command != "condense"
    options = (*METHOD_OPTIONS, *LEARNING_OPTIONS, *SCHEDULE_OPTIONS, *COMPUTE_OPTIONS, *ENGINE_OPTIONS)
    options += (*EVALUATION_OPTIONS, "--no-report") if evaluates else ()
    assert condenset(command, "digits", *options, *LOAD_OPTIONS, "--test", "t", *FILE_OPTIONS).out == "[]\n"
    ((request, arguments),) = calls
    learning = {"network": "mlp", "iterations": 8, "lr": 0.5, "init": "noise", "augment": "crop"}
    assert request.recipe_fields == {"allow_fewer": True, "momentum": 0.25, **learning}
    assert (request.methods, request.ipcs, request.schedule) == (("dm",), (3, 4, 5), "paper")
    assert request.evaluate == evaluates
    if evaluates:
        assert request.protocol_fields == {"network": "mlp", "augment": "crop", "num_networks": 4, "epochs": 5}
        assert request.whole_epochs == 7
    del arguments["session"]
    assert arguments == {
        "dataset": "digits",
        "out": Path("o"),
        "overwrite": True,
        "report": False,
        "snapshots": 3,
        "seed": 6,
        "device": "cpu",
        "precision": "bfloat16",
        "memory_limit": 1024,
        "engine_fields": {"engine": "ray", "address": "auto", "gpus_per_worker": 0.5},
        "load_fields": {
            "size": 9,
            "fit": "pad",
            "background": "red",
            "white_level": 4095,
            "nested": True,
            "skip_bad": True,
            "test": "t",
        },
        "data_dir": Path("d"),
    } | ({"num_networks_on_random": None} if evaluates else {})


@pytest.fixture
def experiments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunContext, dict[str, Any]]]:
    """Record the run and the arguments of experiments instead of running them."""
    calls: list[tuple[RunContext, dict[str, Any]]] = []

    def run_experiment(config: ExperimentConfig, splits: Splits, run: RunContext) -> ExperimentResult:
        directory = run.directory
        assert directory is not None
        fields = {name: getattr(config, name) for name in ("experiment", "scale", "num_sets", "dataset", "request")}
        calls.append((run, {"dataset_name": splits.train.name, **fields}))
        (directory / "parts").mkdir(exist_ok=True)
        return ExperimentResult(records=[], table=Table(("a",), [("b",)]), draw=lambda: new_chart()[0])

    monkeypatch.setattr(start, "run_experiment", run_experiment)
    return calls


def test_every_option_of_an_experiment_is_passed_on_and_stored(
    condenset: CommandRunner, toy: Path, experiments: list[tuple[RunContext, dict[str, Any]]]
) -> None:
    options = ["--methods", "random,dm", "--ipc", "3, 1", "--set", "dm.lr=2", "--nets", 4, "--epochs", 5]
    options += ["--whole-epochs", 7, "--sets", 2, "--seed", 6, "--precision", "bfloat16", "--memory", "1K"]
    options += ["--device", "cpu", "--size", 8, "--background", "black", "--out", "a", *SCHEDULE_OPTIONS]
    assert condenset("paper", "sizes", "--dataset", toy, "--scale", "tiny", *options).code == 0
    assert condenset("resume", "a").code == 0
    assert condenset("resume", "a", "--memory", "2K").code == 0
    assert [run.memory_limit for run, _ in experiments] == [1024, 1024, 2048]
    for run, arguments in experiments:
        request = arguments["request"]
        assert (request.methods, request.ipcs, request.schedule) == (("random", "dm"), (3, 1), "paper")
        assert request.method_fields == {"dm": {"lr": 2.0}}
        assert (request.protocol_fields, request.whole_epochs) == ({"num_networks": 4, "epochs": 5}, 7)
        expected = {"experiment": "sizes", "scale": "tiny", "num_sets": 2, "dataset": str(toy)}
        assert {key: arguments[key] for key in expected} == expected
        assert (run.seed, run.compute.precision) == (6, "bfloat16")
    config = tomllib.loads(Path("a/experiment.toml").read_text())
    assert (config["size"], config["background"]) == (8, "black") and "fit" not in config


def test_an_experiment_holds_out_test_images_and_says_so(
    condenset: CommandRunner, tmp_path: Path, experiments: list[tuple[RunContext, dict[str, Any]]]
) -> None:
    make_classes(tmp_path / "photos", "ab", count=5)
    result = condenset("paper", "sizes", "--dataset", "photos", "--scale", "tiny", "--ipc", 1, "--out", "a")
    assert "20% of the images are held out for the test.\n" in result.err
    assert tomllib.loads(Path("a/experiment.toml").read_text())["test_share"] == 0.2
    assert condenset("resume", "a").code == 0


def test_resume_finds_a_dataset_in_another_data_directory(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("data", "import", toy, "letters", "--data-dir", "one", "--no-flip").code == 0
    assert not load("letters", data_dir="one").train.allow_hflip
    condense = ("condense", "letters", "--data-dir", "one", "--method", "random", "--ipc", 1, "--device", "cpu")
    assert condenset(*condense, "--out", "a").code == 0
    shutil.move("one", "two")
    assert "letters" in condenset("resume", "a").error_line
    assert condenset("resume", "a", "--data-dir", "two").code == 0


def test_resume_finds_a_dataset_that_was_moved(
    condenset: CommandRunner, toy: Path, tmp_path: Path, experiments: list[tuple[RunContext, dict[str, Any]]]
) -> None:
    options = ("--ipc", 1, "--device", "cpu", "--out")
    assert condenset("condense", toy, "--method", "random", *options, "a").code == 0
    assert condenset("paper", "sizes", "--dataset", toy, "--scale", "tiny", *options, "b").code == 0
    shutil.move(toy, tmp_path / "other.npz")
    write_npz(tmp_path / "wrong.npz", seed=1)
    for directory in ("a", "b"):
        assert "--dataset" in condenset("resume", directory).error_line
        error_line = condenset("resume", directory, "--dataset", "wrong.npz").error_line
        assert f"wrong.npz is not the dataset that {directory} began with" in error_line
        assert condenset("resume", directory, "--dataset", "other.npz").code == 0
    assert [arguments["dataset"] for _, arguments in experiments] == [str(toy), str(toy)]
    assert [arguments["dataset_name"] for _, arguments in experiments] == [toy.stem] * 2  # presets depend on it


def test_paths_can_begin_with_the_home_directory(
    condenset: CommandRunner, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert condenset("condense", toy, "--ipc", 1, "--method", "random", "--out=~/a").code == 0
    assert condenset("condense", "--config=~/a/recipe.toml", "--out=~/b").code == 0
    assert condenset("resume", "~/b").code == 0
    assert condenset("show", "~/b", "--out=~/b.png").code == 0
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"a", "b", "b.png"}
