"""`condenset run`, `compare` and `condense`: files, records and options."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from condenset import CondensedSet
from condenset.errors import UserError
from condenset.pipeline import execute
from helpers.command_line import (
    RECORD_FIELDS,
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    list_files,
    read_files,
    read_records,
    sets_equal,
    write_npz,
)


@pytest.mark.charts
def test_run_writes_sets_results_and_figures(condenset: CommandRunner, tmp_path: Path) -> None:
    options = (*TINY_NETWORK, "--iterations", 3, *TINY_EVALUATION, "--no-whole")
    result = condenset("run", "digits", "--ipc", 1, "--ipc", 2, *options)
    assert result.code == 0
    directory = tmp_path / "runs" / "digits"
    assert list_files(directory) == [
        "chart.png",
        "chart.svg",
        "events.jsonl",
        "grid.png",
        "recipe.toml",
        "report.html",
        "results.json",
        "sets/dm-1.safetensors",
        "sets/dm-2.safetensors",
        "sets/random-1.safetensors",
        "sets/random-2.safetensors",
        *(f"snapshots/dm-{ipc}/{step}.safetensors" for ipc in (1, 2) for step in (0, 1, 2)),
    ]
    records = read_records(directory)
    jobs = [("random", 1), ("dm", 1), ("random", 2), ("dm", 2)]
    assert [(record["method"], record["ipc"]) for record in records] == jobs
    for record in records:
        assert [key for key in record if key != "together"] == RECORD_FIELDS
        assert record["dataset"] == "digits"
        assert record["device"] == "cpu"
        assert 0 <= record["accuracy_mean"] <= 1
        assert record["accuracies"] == [record["accuracy_mean"]]
    assert [record["iterations"] for record in records] == [0, 3, 0, 3]
    assert CondensedSet.load(directory / "sets" / "dm-2.safetensors").provenance["recipe"]["ipc"] == 2
    with Image.open(directory / "grid.png") as image:
        image.verify()
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events} == {"step", "network"}
    assert all({"loss", "seconds", "step"} <= set(event) for event in events if event["event"] == "step")
    for file in ("grid.png", "results.json", "sets", "report.html"):
        assert str(Path("runs") / "digits" / file) in result.out
    result = condenset("run", "digits", "--ipc", 1, "--no-report", "--snapshots", 0, *options)
    assert "report" not in result.out
    files = list_files(tmp_path / "runs" / "digits-2")
    assert "results.json" in files
    assert not [file for file in files if file.startswith(("report", "snapshots"))]


def test_the_first_lines_are_short(condenset: CommandRunner, toy: Path) -> None:
    work = "Condensing toy to 1, 2 images per class with random, dm"
    lines = condenset("run", toy, "--ipc", "1,2", *TINY, "--out", "a").err.splitlines()
    assert lines[:2] == [work, "36 training and 36 test images of 1x8x8, 3 classes"]
    assert lines[2].startswith("Device: ") and lines[2].endswith("float32. Directory: a")
    Path("a/results.json").unlink()  # the run is unfinished
    assert condenset("resume", "a").err.splitlines()[:3] == lines[:3]
    methods = "random,herding,kcenter,mmd,dm"
    lines = condenset("condense", toy, "--method", methods, "--ipc", 1, "--iterations", 1, *TINY_NETWORK).err
    assert lines.splitlines()[0] == "Condensing toy to 1 image per class with 5 methods"


def test_ipc_defaults_to_10(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("condense", toy, "--method", "random", "--out", "a").code == 0
    assert [record["ipc"] for record in read_records(Path("a"))] == [10]


def test_ipc_share_gives_numbers_per_class(condenset: CommandRunner, tmp_path: Path) -> None:
    data = write_npz(tmp_path / "unbalanced.npz", counts=(12, 8, 3))
    result = condenset("run", data, "--ipc-share", 0.25, *TINY, "--out", "a")
    assert "to 1–3 images per class with random, dm" in result.err
    assert [line.split()[:2] for line in result.out.splitlines()[2:4]] == [["random", "1–3"], ["dm", "1–3"]]
    recipe = tomllib.loads(Path("a/recipe.toml").read_text())
    assert [job["ipc"] for job in recipe["jobs"]] == [[3, 2, 1]] * 2
    records, path = read_records(Path("a")), Path("a/sets/dm-1to3.safetensors")
    assert [record["ipc"] for record in records] == [[3, 2, 1]] * 2
    assert CondensedSet.load(path).labels.tolist() == [0, 0, 0, 1, 1, 2]
    assert "ipc=1–3," in condenset("show", path).out
    assert json.loads(condenset("show", path, "--json").out)["recipe"]["ipc"] == [3, 2, 1]
    files = read_files(Path("a"))
    assert condenset("resume", "a").out == result.out
    assert read_files(Path("a")) == files
    assert condenset("condense", "--config", "a/recipe.toml", "--method", "dm", "--out", "b").code == 0
    assert sets_equal(path, Path("b/sets/dm-1to3.safetensors"))
    assert condenset("condense", data, "--method", "random", "--ipc", 1, "--out", "a", "--overwrite").code == 0
    assert [file for file in list_files(Path("a")) if "sets" in file] == ["sets/random-1.safetensors"]


def test_ipc_and_ipc_share_exclude_each_other(condenset: CommandRunner, toy: Path) -> None:
    for command in ("run", "compare", "condense"):
        error_line = condenset(command, toy, "--ipc", 1, "--ipc-share", 0.1).error_line
        assert "--ipc and --ipc-share exclude each other: give one of the two" in error_line
    assert "must be a number above 0, at most 1, but got 2.0" in condenset("run", toy, "--ipc-share", 2).error_line


def test_the_whole_dataset_is_scored_unless_disabled(condenset: CommandRunner, toy: Path) -> None:
    options = (*TINY_NETWORK, "--nets", 1)
    Path("fast.toml").write_text(
        f'dataset = "{toy}"\n[[jobs]]\nmethod = "random"\nipc = 1\n[protocol]\nepochs = 1\n[whole]\nepochs = 1\n'
    )
    error_line = condenset("run", "--config", "fast.toml", "--iterations", 1, *options).error_line
    assert "an option of random must be one of" in error_line
    result = condenset("run", "--config", "fast.toml", *options, "--out", "a", "--json")
    assert [record["method"] for record in json.loads(result.out)] == ["random", "whole"]
    whole = read_records(Path("a"))[1]
    assert list(whole) == RECORD_FIELDS
    assert whole["ipc"] is None
    assert condenset("run", "--config", "a/recipe.toml", "--no-whole", "--out", "b").code == 0
    assert [record["method"] for record in read_records(Path("b"))] == ["random"]


def test_random_images_that_run_adds_are_scored_by_fewer_networks(condenset: CommandRunner, toy: Path) -> None:
    options = (*TINY_NETWORK, "--ipc", 1, "--epochs", 1, "--no-whole", "--no-report")
    preview = condenset("run", toy, "--iterations", 1, *options, "--dry-run").out
    assert "20 × convnet(width=8, depth=1)" in preview and "; random: 5 networks" in preview
    assert condenset("run", toy, "--iterations", 1, *options, "--out", "a").code == 0
    assert count_networks("a") == {"random": 5, "dm": 20}
    assert condenset("run", "--config", "a/recipe.toml", "--nets", 6, "--out", "b", "--no-report").code == 0
    assert count_networks("b") == {"random": 6, "dm": 6}
    repeat = ("--config", "a/recipe.toml", "--no-report", "--out")
    for number, (command, *arguments) in enumerate((("run",), ("run", "--method", "random"), ("compare",))):
        condenset(command, *repeat, number, *arguments)
    assert count_networks("0") == {"random": 5, "dm": 20}
    assert count_networks("1") == {"random": 20}
    assert count_networks("2") == {"random": 20, "dm": 20}
    Path("0/results.json").unlink()
    assert condenset("resume", "0", "--no-report").code == 0
    assert count_networks("0") == {"random": 5, "dm": 20}


def count_networks(run_directory: str) -> dict[str, int]:
    return {record["method"]: len(record["accuracies"]) for record in read_records(Path(run_directory))}


def test_results_are_printed_before_they_are_drawn(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UserError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(execute, "save_grid", fail)
        result = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    assert result.code == 2 and result.err.endswith("no space left\n")
    assert [line.split()[0] for line in result.out.splitlines() if line] == [
        "networks:",
        "method",
        "random",
        "dm",
        "sets",
        "results",
    ]
    assert condenset("resume", "a").code == 0
    assert Path("a/grid.png").exists()


def test_json_prints_the_records_and_nothing_else(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    result = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a", "--json")
    assert json.loads(result.out) == read_records(tmp_path / "a")
    assert json.loads(condenset("resume", "a", "--json").out) == read_records(tmp_path / "a")
    condense = ("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 1, "--out", "c")
    (record,) = json.loads(condenset(*condense, "--json").out)
    assert record["method"] == "dm"
    assert "accuracy_mean" not in record


def test_condense_makes_a_set_without_scoring_it(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    result = condenset("condense", toy, "--ipc", 2, *TINY_NETWORK, "--iterations", 3, "--out", "c")
    assert result.code == 0
    files = ["events.jsonl", "grid.png", "recipe.toml", "results.json", "sets/dm-2.safetensors"]
    assert list_files(tmp_path / "c") == files
    assert len(CondensedSet.load("c/sets/dm-2.safetensors")) == 6
    assert condenset("condense", "--config", "c/recipe.toml", "--out", "d").code == 0
    assert sets_equal(tmp_path / "c" / "sets" / "dm-2.safetensors", tmp_path / "d" / "sets" / "dm-2.safetensors")
    assert "condenset condense --config" in (tmp_path / "c" / "recipe.toml").read_text()


def test_folders_of_images_and_imported_datasets_give_equal_sets(condenset: CommandRunner, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for number in range(10):
            path = tmp_path / "pets" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).save(path)
    assert "--size" in condenset("run", "pets", "--ipc", 1).err
    assert condenset("run", "pets", "--size", 8, "--ipc", 1, *TINY).code == 0
    recipe = tomllib.loads(Path("runs/pets/recipe.toml").read_text())
    assert recipe["dataset"] == str(tmp_path / "pets")  # absolute: the run can be resumed from anywhere
    assert condenset("data", "import", "pets", "animals", "--size", 8, "--test-share", 0.2).code == 0
    assert condenset("run", "animals", "--ipc", 1, *TINY).code == 0
    assert tomllib.loads(Path("runs/animals/recipe.toml").read_text())["dataset"] == "animals"
    assert sets_equal(Path("runs/pets/sets/dm-1.safetensors"), Path("runs/animals/sets/dm-1.safetensors"))
    assert condenset("evaluate", "runs/pets", *TINY_EVALUATION).code == 0  # the image size is that of the run


@pytest.mark.charts
def test_compare_runs_several_methods_and_resumes(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    options = ("--ipc", 1, *TINY_NETWORK, *TINY_EVALUATION, "--no-whole", "--memory", "1GiB")
    result = condenset("compare", toy, "--methods", "herding, kcenter,random", *options, "--out", "a")
    assert result.code == 0
    assert [record["method"] for record in read_records(tmp_path / "a")] == ["herding", "kcenter", "random"]
    assert {record["epochs"] for record in read_records(tmp_path / "a")} == {1}
    with Image.open(tmp_path / "a/chart.png") as chart:
        assert chart.size[0] > 100
    assert (tmp_path / "a/chart.svg").read_text().count("herding") >= 1
    assert len(list((tmp_path / "a/networks").iterdir())) == 1  # herding and kcenter share it
    before = read_files(tmp_path / "a")
    assert condenset("resume", "a").code == 0
    assert read_files(tmp_path / "a") == before
    error_line = condenset("compare", toy, "--methods", "herding,dmm", *options).error_line
    assert "did you mean 'dm'" in error_line


def test_compare_defaults_to_all_methods(condenset: CommandRunner, toy: Path) -> None:
    run = ("compare", toy, "--ipc", 1, "--set", "dd.network=mlp(wdth=1)")
    assert "did you mean 'width'" in condenset(*run).error_line
    assert "all" in condenset("compare", "--help").out


@pytest.mark.parametrize("spelling", [("--method", "random, mmd,"), ("--methods", "random", "--method", "mmd")])
@pytest.mark.parametrize("command", ["run", "compare", "condense"])
def test_method_option_takes_lists_and_repeats(
    condenset: CommandRunner, toy: Path, command: str, spelling: tuple[str, ...]
) -> None:
    scoring = () if command == "condense" else (*TINY_EVALUATION, "--no-whole")
    options = ("--set", "mmd.iterations=1", *scoring, "--device", "cpu", "--json")
    result = condenset(command, toy, "--ipc", 1, *spelling, *options)
    assert [record["method"] for record in json.loads(result.out)] == ["random", "mmd"]


def test_method_all_means_every_method(condenset: CommandRunner, toy: Path) -> None:
    run = ("run", toy, "--ipc", 1, "--method", "all", "--set", "dd.network=mlp(wdth=1)")
    assert "did you mean 'width'" in condenset(*run).error_line
