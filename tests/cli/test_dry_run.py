"""`--dry-run` prints the plan and writes nothing; large images get one line of advice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from condenset.experiments import EXPERIMENTS
from helpers.command_line import TINY, TINY_NETWORK, CommandRunner, list_files, write_npz

ADVICE = "images are 96x96; --size 64 makes an iteration about 2.2 times faster"


def test_run_prints_its_plan(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    files = list_files(tmp_path)
    options = (
        "--ipc",
        "1,2",
        "--method",
        "random,dm",
        *TINY_NETWORK,
        "--iterations",
        5,
        "--nets",
        2,
        "--seed",
        7,
        "--dry-run",
    )
    plan = json.loads(condenset("run", toy, *options, "--json").out)
    assert list_files(tmp_path) == files
    assert {key: plan[key] for key in ("training images", "test images", "classes", "image shape", "directory")} == {
        "training images": "36",
        "test images": "36",
        "classes": "3",
        "image shape": "1x8x8",
        "directory": "runs/toy",
    }
    assert plan["dataset"] == str(toy)
    assert plan["device"].endswith("float32") and plan["seed"] == "7"
    assert plan["random, 1 per class"] == "no settings"
    assert "iterations=5" in plan["dm, 2 per class"] and plan["dm, 2 per class"].endswith("of memory)")
    assert plan["scoring"].startswith("2 × convnet(width=8, depth=1), paper protocol, 1000 epochs")
    assert "1000 epochs" in plan["whole dataset"]
    *lines, last = condenset("run", toy, *options).out.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(plan)
    assert last.startswith("Time, memory and disk: condenset plan ")


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        ("run", ("--ipc", "1,2", "--seed", 3, "--no-whole"), "--ipc 1,2 --no-whole"),
        ("run", ("--epochs", 2, "--whole-epochs", 1), "--epochs 2 --whole-epochs 1"),
        ("run", ("--lr", 2, "--init", "noise", "--zca"), "--lr 2.0 --init noise --zca"),
        (
            "compare",
            ("--ipc", 1, "--method", "dm", "--method", "mmd", "--nets", 2),
            "--method dm --method mmd --ipc 1 --nets 2",
        ),
        (
            "condense",
            ("--ipc", 1, "--set", "lr=2", "--set", "init=noise", "--allow-fewer"),
            "--ipc 1 --set lr=2 --set init=noise --allow-fewer --no-evaluate",
        ),
    ],
)
def test_dry_run_ends_with_the_command_that_measures_the_cost(
    condenset: CommandRunner, toy: Path, command: str, options: tuple[object, ...], expected: str
) -> None:
    last = condenset(command, toy, *options, "--dry-run").out.splitlines()[-1]
    assert last == f"Time, memory and disk: condenset plan {toy} {expected}"


def test_plan_of_a_comparison_names_its_methods(condenset: CommandRunner, toy: Path) -> None:
    last = condenset("compare", toy, "--ipc", 1, "--dry-run").out.splitlines()[-1]
    assert " --ipc 1 --method random," in last and ",dm," in last


def test_dry_run_of_a_config_file_names_no_command_for_the_cost(condenset: CommandRunner, toy: Path) -> None:
    assert condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a").code == 0
    preview = condenset("condense", "--config", "a/recipe.toml", "--dry-run")
    assert preview.code == 0 and "condenset plan" not in preview.out  # plan has no --config


def test_plan_names_the_directory_of_the_next_run(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "toy").mkdir(parents=True)
    assert condenset("condense", toy, "--dry-run").out.splitlines()[-2].split() == ["directory", "runs/toy-2"]
    assert "scoring" not in condenset("condense", toy, "--dry-run", "--out", "o").out
    assert not (tmp_path / "o").exists()


def test_invalid_plans_are_refused(condenset: CommandRunner, toy: Path) -> None:
    assert "ipc must be at most" in condenset("compare", toy, "--ipc", 50, "--dry-run").error_line


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_print_their_plan(condenset: CommandRunner, experiment: str, tmp_path: Path) -> None:
    plan = json.loads(condenset("paper", experiment, "--scale", "tiny", "--dry-run", "--json").out)
    assert plan["experiment"].startswith(EXPERIMENTS[experiment].title)
    assert [key for key in plan if key.startswith("dm, ")]
    assert any(key.startswith("scoring") for key in plan) == EXPERIMENTS[experiment].scores_sets
    assert plan["directory"] == f"runs/{experiment}-digits"
    assert list_files(tmp_path) == []


def test_an_experiment_prints_the_networks_that_it_trains(condenset: CommandRunner) -> None:
    def preview(experiment: str, *options: object) -> dict[str, str]:
        plan: dict[str, str] = json.loads(condenset("paper", experiment, *options, "--dry-run", "--json").out)
        return plan

    search = preview("nas", "--scale", "tiny")
    assert search["scoring, 6 networks such as"].startswith("1 × convnet(width=4, depth=1, norm='none'), paper")
    assert "3 epochs" in search["whole dataset, the best such as"]
    search = preview("nas", "--scale", "paper", "--dataset", "digits")
    (proxy,) = (text for label, text in search.items() if label.startswith("scoring"))
    assert proxy.startswith("5 × convnet(") and "200 epochs" in proxy
    norms = preview("batchnorm", "--scale", "tiny")
    assert all("norm='batch'" in norms[label] for label in ("dm, batch norm, 2 per class", "scoring, batch norm"))
    architectures = preview("architectures", "--scale", "tiny")
    assert "network=mlp(width=32)" in architectures["dm, MLP, 1 per class"]
    assert architectures["scoring, MLP"].startswith("2 × mlp(width=32)")


def test_large_images_get_advice(condenset: CommandRunner, tmp_path: Path) -> None:
    large = write_npz(tmp_path / "large.npz", counts=(2, 2), size=96)
    options = ("--method", "random", "--ipc", 1)
    assert ADVICE in condenset("condense", large, *options).err.splitlines()
    assert ADVICE not in condenset("resume", "runs/large").err
    assert json.loads(condenset("run", large, *options, "--dry-run", "--json").out)["advice"] == ADVICE
    resized = condenset("condense", large, *options, "--size", 16)
    assert resized.code == 0
    assert "images are" not in resized.err


def test_small_images_get_no_advice(condenset: CommandRunner, toy: Path) -> None:
    assert "images are" not in condenset("run", toy, "--ipc", 1, *TINY).err


def test_plan_of_two_folders_names_the_test_images_and_the_parent(condenset: CommandRunner) -> None:
    for split in ("Train", "test"):
        for name, level in (("a", 10), ("b", 200)):
            folder = Path("base", split, name)
            folder.mkdir(parents=True)
            Image.new("L", (8, 8), level + len(split)).save(folder / "0.png")
    arguments = ("run", "--train", "base/Train", "--test", "base/test", "--ipc", 1, "--dry-run", "--json")
    plan = json.loads(condenset(*arguments).out)
    assert plan["test images"] == f"2 ({Path('base/test').absolute()})"
    assert plan["directory"] == "runs/base"
