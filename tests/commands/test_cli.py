from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from shell import FIELDS, TINY, TINY_NETWORK, Condenset, change_the_test, names, records_of, same_set, tree, write_npz

from condenset import CondensedSet, data
from condenset.methods import METHODS

COMMANDS = ["run", "compare", "condense", "evaluate", "resume", "show", "methods", "networks", "data"]
DATA_COMMANDS = ["list", "get", "check", "import"]


def test_a_run_on_digits_leaves_what_the_guide_says(condenset: Condenset, tmp_path: Path) -> None:
    tiny = (*TINY_NETWORK, "--iterations", 3, "--nets", 1, "--epochs", 1, "--no-whole")
    result = condenset("run", "digits", "--ipc", 1, "--ipc", 2, *tiny)
    assert result.code == 0
    folder = tmp_path / "runs" / "digits"
    assert names(folder) == [
        "chart.png",
        "chart.svg",
        "condensed.safetensors",
        "events.jsonl",
        "grid.png",
        "recipe.toml",
        "results.json",
        "sets/dm-1.safetensors",
        "sets/random-1.safetensors",
        "sets/random-2.safetensors",
    ]
    records = records_of(folder)
    assert [(record["method"], record["ipc"]) for record in records] == [
        ("random", 1),
        ("dm", 1),
        ("random", 2),
        ("dm", 2),
    ]
    for record in records:
        assert [key for key in record if key != "together"] == FIELDS
        assert record["dataset"] == "digits"
        assert record["device"] == "cpu"
        assert 0 <= record["accuracy_mean"] <= 1
        assert record["accuracies"] == [record["accuracy_mean"]]
    assert [record["iterations"] for record in records] == [0, 3, 0, 3]
    assert CondensedSet.load(folder / "condensed.safetensors").provenance["recipe"]["ipc"] == 2
    with Image.open(folder / "grid.png") as image:
        image.verify()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {event["event"] for event in events} == {"step", "network"}
    assert all({"loss", "seconds", "step"} <= set(event) for event in events if event["event"] == "step")
    for text in ("grid.png", "results.json", "condensed.safetensors"):
        assert str(Path("runs") / "digits" / text) in result.out
    assert condenset("run", "digits", "--ipc", 1, *tiny).code == 0  # another folder: nothing is overwritten
    assert (tmp_path / "runs" / "digits-2" / "results.json").exists()


def test_the_whole_dataset_is_scored_too_unless_not_wanted(condenset: Condenset, toy: Path) -> None:
    tiny = (*TINY_NETWORK, "--nets", 1)
    Path("fast.toml").write_text(
        f'dataset = "{toy}"\n[[jobs]]\nmethod = "random"\nipc = 1\n[protocol]\nepochs = 1\n[whole]\nepochs = 1\n'
    )
    complaint = condenset("run", "--config", "fast.toml", "--iterations", 1, *tiny).complaint
    assert "an option of random must be one of" in complaint
    result = condenset("run", "--config", "fast.toml", *tiny, "--out", "a", "--json")
    assert [record["method"] for record in json.loads(result.out)] == ["random", "whole"]
    whole = records_of(Path("a"))[1]
    assert list(whole) == FIELDS
    assert whole["ipc"] is None
    assert condenset("run", "--config", "a/recipe.toml", "--no-whole", "--out", "b").code == 0
    assert [record["method"] for record in records_of(Path("b"))] == ["random"]


def test_json_is_all_that_stdout_holds(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    run = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a", "--json")
    assert json.loads(run.out) == records_of(tmp_path / "a")
    made = json.loads(
        condenset("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 1, "--out", "c", "--json").out
    )
    assert made[0]["method"] == "dm"
    assert "accuracy_mean" not in made[0]
    tested = json.loads(condenset("evaluate", "a", "--nets", 1, "--epochs", 1, "--json").out)
    assert list(tested[0]) == FIELDS
    assert json.loads(condenset("resume", "a", "--json").out) == records_of(tmp_path / "a")
    shown = json.loads(condenset("show", "a", "--json").out)
    assert (shown["method"], shown["source"], shown["recipe"]["ipc"]) == ("dm", str(toy), 1)
    assert (shown["images"], shown["shape"], shown["classes"], shown["labels"]) == (3, [1, 8, 8], 3, "hard")
    assert shown["class_names"] == ["class 0", "class 1", "class 2"]
    assert len(shown["mean"]) == len(shown["std"]) == 1 and shown["pixel_range"][0] < shown["pixel_range"][1]
    assert json.loads(condenset("data", "check", toy, "--json").out)["num_train"] == 36
    entries = json.loads(condenset("data", "list", "--json").out)
    assert {"name", "state", "num_train"} <= set(entries[0])
    assert {row["name"] for row in json.loads(condenset("methods", "--json").out)} == METHODS.keys()
    assert "convnet" in {row["name"] for row in json.loads(condenset("networks", "--json").out)}


def test_condense_makes_a_set_and_does_not_score_it(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    result = condenset("condense", toy, "--ipc", 2, *TINY_NETWORK, "--iterations", 3, "--out", "c")
    assert result.code == 0
    assert names(tmp_path / "c") == ["condensed.safetensors", "events.jsonl", "grid.png", "recipe.toml", "results.json"]
    assert len(CondensedSet.load("c/condensed.safetensors")) == 6
    again = condenset("condense", "--config", "c/recipe.toml", "--out", "d")
    assert again.code == 0
    assert same_set(tmp_path / "c" / "condensed.safetensors", tmp_path / "d" / "condensed.safetensors")
    assert "condenset condense --config" in (tmp_path / "c" / "recipe.toml").read_text()


def test_evaluate_takes_files_and_folders_and_finds_their_data(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy.name, "--ipc", 1, *TINY, "--out", "a")
    few = ("--nets", 1, "--epochs", 1, "--device", "cpu")
    result = condenset("evaluate", "a", "a/sets/random-1.safetensors", *few, "--out", "results/scores.json")
    assert result.code == 0
    assert [record["method"] for record in records_of_file("results/scores.json")] == ["dm", "random"]
    assert condenset("evaluate", "a", *few, "--out", "results/scores.json").complaint.startswith("results/scores.json ")
    assert condenset("evaluate", "a", *few, "--out", "results/scores.json", "--overwrite").code == 0
    assert len(records_of_file("results/scores.json")) == 1
    by_recipe = json.loads(condenset("evaluate", "a", "--config", "a/recipe.toml", "--device", "cpu", "--json").out)[0]
    assert by_recipe["accuracies"] == records_of(tmp_path / "a")[1]["accuracies"]  # the run's score, repeated
    shutil.copy("a/condensed.safetensors", "moved.safetensors")
    assert "give --dataset" in condenset("evaluate", "moved.safetensors", *few).complaint
    assert condenset("evaluate", "moved.safetensors", *few, "--dataset", toy).code == 0
    assert json.loads(condenset("evaluate", "a", *few, "--seed", 5, "--json").out)[0]["seed"] == 5
    network = ("--network", "mlp(width=8)")
    assert json.loads(condenset("evaluate", "a", *few, *network, "--json").out)[0]["network"] == "mlp(width=8)"
    write_npz(toy, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        (line,) = [line for line in condenset("evaluate", "a", *few).err.splitlines() if "warning" in line]
    assert line.startswith("condenset: warning: the training images of ") and "among the test images now" in line


def test_a_folder_of_sets_stands_for_all_of_them(condenset: Condenset, toy: Path) -> None:
    condenset(
        "condense", toy, "--ipc", 1, "--method", "random", "--method", "mmd", "--set", "iterations=1", "--out", "a"
    )
    condenset("condense", toy, "--ipc", 2, "--ipc", 1, "--ipc", 3, "--method", "random", "--out", "b")
    few = ("--nets", 1, "--epochs", 1, "--device", "cpu")
    records = json.loads(condenset("evaluate", "b/sets", "a", *few, "--json").out)
    assert [(record["method"], record["ipc"]) for record in records] == [("random", 1), ("random", 2), ("mmd", 1)]
    assert "b/sets holds 2 set files: name one of them" in condenset("show", "b/sets").complaint
    assert "a/sets/random-1.png" in condenset("show", "a/sets").out  # the only one there


def records_of_file(path: str) -> list[dict[str, object]]:
    return json.loads(Path(path).read_text())


def test_show_tells_and_draws(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 2, "--method", "random", "--out", "a")
    result = condenset("show", "a/condensed.safetensors")
    assert result.code == 0
    assert "6 of 1x8x8, 3 classes" in result.out
    assert "random" in result.out
    with Image.open("a/condensed.png") as image:
        image.verify()
    assert condenset("show", "a", "--out", "b.png").code == 0
    before = tree(tmp_path)
    assert "b.png exists already" in condenset("show", "a", "--out", "b.png").complaint
    assert tree(tmp_path) == before
    assert condenset("show", "a", "--out", "b.png", "--overwrite").code == 0
    os.utime("a/condensed.png", (1, 1))
    assert "older than the set: --overwrite draws it again" in condenset("show", "a").out
    assert json.loads(condenset("show", "a", "--json").out)["picture"] is None
    Path("c").mkdir()
    shutil.copy("a/condensed.safetensors", "c")
    Path("c/condensed.png").mkdir()  # where no picture can be written
    assert "6 of 1x8x8" in condenset("show", "c", "--overwrite").out


def test_a_folder_of_images_and_an_imported_set_run_too(condenset: Condenset, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        for number in range(10):
            path = tmp_path / "pets" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).save(path)
    assert "--size" in condenset("run", "pets", "--ipc", 1).complaint
    assert condenset("run", "pets", "--size", 8, "--ipc", 1, *TINY).code == 0
    recipe = tomllib.loads(Path("runs/pets/recipe.toml").read_text())
    assert recipe["dataset"] == str(tmp_path / "pets")  # resumes from any folder
    result = condenset("data", "import", "pets", "animals", "--size", 8)
    assert result.code == 0
    assert "animals is in" in result.out
    refused = condenset("data", "import", "pets", "animals", "--size", 8).complaint
    assert "exists already" in refused and "--overwrite" in refused
    assert condenset("data", "import", "pets", "animals", "--size", 8, "--overwrite").code == 0
    assert "imported" in condenset("data", "list").out
    assert data.load("animals").train.can_flip
    assert condenset("data", "import", "pets", "letters", "--size", 8, "--no-flip").code == 0
    assert not data.load("letters").train.can_flip
    assert condenset("data", "check", "animals").out.startswith("animals: 16 train and 4 test images of 3x8x8")
    assert condenset("run", "animals", "--ipc", 1, *TINY).code == 0
    assert tomllib.loads(Path("runs/animals/recipe.toml").read_text())["dataset"] == "animals"
    assert same_set(Path("runs/pets/condensed.safetensors"), Path("runs/animals/condensed.safetensors"))
    assert condenset("evaluate", "runs/pets", "--nets", 1, "--epochs", 1).code == 0  # the size is the run's


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *(["data", name] for name in DATA_COMMANDS)])
def test_every_command_explains_itself(condenset: Condenset, command: list[str]) -> None:
    result = condenset(*command, "--help")
    assert result.code == 0
    assert "Usage: condenset" in result.out
    assert result.err == ""
    assert all(name in result.out for name in (COMMANDS if command == [] else []))


def test_no_arguments_print_the_help_and_the_version_is_told(condenset: Condenset) -> None:
    assert "Usage: condenset" in condenset().out
    assert condenset().err == ""
    assert condenset("--version").out.startswith("condenset ")


def test_help_does_not_wait_for_torch() -> None:
    script = "import sys, atexit; from condenset.cli import main; "
    script += "atexit.register(lambda: print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)), file=sys.stderr)); "
    script += "main(['run', '--help'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "--ipc" in done.stdout
    assert done.stderr == "[]\n"


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", "from condenset.cli import main; main(['networks', '--json'])"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_compare_runs_methods_side_by_side_and_resumes(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    options = ("--ipc", 1, *TINY_NETWORK, "--nets", 1, "--epochs", 1, "--no-whole")
    bound = ("--memory", "1GiB")
    result = condenset("compare", toy, "--methods", "herding, kcenter,random", *options, *bound, "--out", "a")
    assert result.code == 0
    assert [record["method"] for record in records_of(tmp_path / "a")] == ["herding", "kcenter", "random"]
    assert {record["epochs"] for record in records_of(tmp_path / "a")} == {1}
    assert tomllib.loads((tmp_path / "a/recipe.toml").read_text())["memory"] == 2**30
    with Image.open(tmp_path / "a/chart.png") as chart:
        assert chart.size[0] > 100
    assert (tmp_path / "a/chart.svg").read_text().count("herding") >= 1
    assert len(list((tmp_path / "a/networks").iterdir())) == 1  # one for both that need it
    before = tree(tmp_path / "a")
    assert condenset("resume", "a").code == 0
    assert tree(tmp_path / "a") == before
    complaint = condenset("compare", toy, "--methods", "herding,dmm", *options).complaint
    assert "did you mean 'dm'" in complaint


@pytest.mark.parametrize("spelling", [("--method", "random, mmd,"), ("--methods", "random", "--method", "mmd")])
@pytest.mark.parametrize("command", ["run", "compare", "condense"])
def test_methods_are_given_in_either_spelling(
    condenset: Condenset, toy: Path, command: str, spelling: tuple[str, ...]
) -> None:
    scoring = () if command == "condense" else ("--nets", 1, "--epochs", 1, "--no-whole")
    short = ("--set", "mmd.iterations=1", *scoring)
    result = condenset(command, toy, "--ipc", 1, *spelling, *short, "--device", "cpu", "--json")
    assert [record["method"] for record in json.loads(result.out)] == ["random", "mmd"]


def test_all_stands_for_every_method(condenset: Condenset, toy: Path) -> None:
    run = ("run", toy, "--ipc", 1, "--method", "all", "--set", "dd.network=mlp(wdth=1)")
    assert "did you mean 'width'" in condenset(*run).complaint
    complaint = condenset("paper", "cost", "--methods", "all", "--set", "dd.steps=3").complaint
    assert "the method of a setting must be one of dc, dsa, dm" in complaint  # all that this experiment can compare


def test_an_experiment_reads_its_data_once(condenset: Condenset, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, load = [], data.load

    def look(*arguments: object, **options: object) -> object:
        read.append(arguments)
        return load(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(data, "load", look)
    short = ("--scale", "tiny", "--nets", 1, "--epochs", 0, "--whole-epochs", 0, "--device", "cpu")
    names = ("--method", "random", "--methods", "mmd,", "--set", "mmd.iterations=1")
    more = ("--ipc", 2, "--sets", 2, "--memory", "1GiB")
    result = condenset("paper", "sizes", "--dataset", toy, *names, *short, *more, "--out", "a")
    assert (result.code, len(read)) == (0, 1)
    settings = tomllib.loads(Path("a/experiment.toml").read_text())
    assert (settings["ipc"], settings["sets"], settings["memory"]) == ([2], 2, 2**30)
    assert result.out.splitlines()[0].startswith("images a class  random      mmd ")
    assert "its numbers mean nothing" in result.out
    left = Path("a/parts/mmd-2/.checkpoint.x.tmp")  # as a kill would leave it
    left.touch()
    assert condenset("resume", "a").out == result.out
    assert not left.exists()
    assert len(read) == 2
    change_the_test(toy)
    assert "is no longer the data that a began with" in condenset("resume", "a").complaint
    write_npz(toy, seed=1)
    assert "is no longer the data that a began with" in condenset("resume", "a").complaint


def test_an_experiment_knows_a_pool_by_its_whole_path(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    paper = ("paper", "networks", "--dataset", toy, "--scale", "tiny", "--device", "cpu", "--out", "a")
    complaint = condenset(*paper, "--set", "dm.pool=here").complaint
    assert f"{tmp_path / 'here'} is not a pool of networks" in complaint
    assert not Path("a").exists()
    assert "~nobody-at-all/x is not a pool" in condenset(*paper, "--set", "dm.pool=~nobody-at-all/x").complaint
    network = ("--network", "convnet(width=16, depth=2)")
    assert condenset("networks", "train-pool", toy, "--num", 1, "--epochs", 1, *network, "--out", "here").code == 0
    assert condenset(*paper, "--set", "dm.pool=here", "--nets", 1, "--epochs", 0).code == 0
    assert tomllib.loads(Path("a/experiment.toml").read_text())["set"] == [f"dm.pool={tmp_path / 'here'}"]
    Path("here").rename("a/parts/mine")  # a pool within what is to be overwritten
    for pool in ("a/parts/mine", "gone"):
        assert condenset(*paper, "--overwrite", "--set", f"dm.pool={pool}").complaint
        assert Path("a/results.json").exists() and Path("a/parts/mine/pool.json").exists()


def test_compare_takes_all_methods_unless_told(condenset: Condenset, toy: Path) -> None:
    result = condenset("compare", toy, "--ipc", 1, "--network", "convnet(wdth=3)")
    assert "did you mean 'width'" in result.complaint
    assert "all" in condenset("compare", "--help").out
