"""`--schedule`: one option of all commands that condense; files record the numbers that it stands for."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from condenset.methods import make_recipe
from helpers.command_line import TINY_NETWORK, CommandRunner, sets_equal

NAMES = ("iterations", "lr", "average")


def schedule_fields(schedule: str, ipc: int) -> dict[str, Any]:
    recipe = make_recipe("dm", ipc=ipc, name="toy", size=8, schedule=schedule)
    return {name: getattr(recipe, name) for name in NAMES}


def recorded_fields(directory: str) -> list[dict[str, Any]]:
    jobs = tomllib.loads(Path(directory, "recipe.toml").read_text())["jobs"]
    return [{name: job[name] for name in NAMES} for job in jobs if job["method"] == "dm"]


@pytest.mark.parametrize("command", ["run", "compare", "condense"])
@pytest.mark.parametrize("schedule", ["fast", "paper"])
def test_the_plan_has_the_numbers_of_the_schedule(
    command: str, schedule: str, condenset: CommandRunner, toy: Path
) -> None:
    options = () if command == "condense" else ("--method", "random,dm,mmd")  # the others have no schedules
    plan = json.loads(
        condenset(command, toy, "--ipc", "5", *options, "--schedule", schedule, "--dry-run", "--json").out
    )
    for name, value in schedule_fields(schedule, 5).items():
        assert f"{name}={value}" in plan["dm, 5 per class"]
    if options:
        assert "iterations=20000" in plan["mmd, 5 per class"]


def test_methods_without_schedules_are_refused(condenset: CommandRunner, toy: Path) -> None:
    for command in ("run", "condense"):
        line = condenset(command, toy, "--method", "dsa,dmplus", "--schedule", "fast").error_line
        assert line == (
            "a schedule must come with a method that has schedules, such as dm, but got 'fast' with dsa, dmplus: "
            "leave out --schedule"
        )
    line = condenset("run", toy, "--schedule", "fats").error_line
    assert line == "schedule cannot be 'fats'; did you mean 'fast'?"
    line = condenset("paper", "sizes", "--methods", "random", "--scale", "tiny", "--schedule", "fast").error_line
    assert "but got 'fast' with random" in line


def test_a_run_records_numbers_and_resumes_with_them(condenset: CommandRunner, toy: Path) -> None:
    options = ("--method", "dm", "--ipc", "5", "--iterations", "3", *TINY_NETWORK)
    for schedule in ("fast", "paper"):
        assert condenset("condense", toy, *options, "--schedule", schedule, "--out", schedule).code == 0
        assert recorded_fields(schedule) == [schedule_fields(schedule, 5) | {"iterations": 3}]
        assert "schedule" not in Path(schedule, "recipe.toml").read_text()
        path = Path(schedule, "sets", "dm-5.safetensors")
        shutil.move(path, "before.safetensors")
        assert condenset("resume", schedule).code == 0
        assert sets_equal(Path("before.safetensors"), path)
    assert not sets_equal(Path("fast/sets/dm-5.safetensors"), Path("paper/sets/dm-5.safetensors"))


def test_a_schedule_replaces_the_one_of_the_config(condenset: CommandRunner, toy: Path) -> None:
    options = ("--ipc", "5", "--set", "average=0.25", "--iterations", "3", *TINY_NETWORK)
    assert condenset("condense", toy, *options, "--out", "a").code == 0
    changes = ("--schedule", "paper", "--iterations", "2")
    assert condenset("condense", "--config", "a/recipe.toml", *changes, "--out", "b").code == 0
    assert recorded_fields("b") == [{"iterations": 2, "lr": schedule_fields("paper", 5)["lr"], "average": 0.25}]


def test_experiments_use_the_schedule_of_the_paper(condenset: CommandRunner, toy: Path) -> None:
    arguments = ("paper", "sizes", "--dataset", toy, "--scale", "paper", "--ipc", "5", "--dry-run", "--json")
    for options, schedule in (((), "paper"), (("--schedule", "fast"), "fast")):
        plan = json.loads(condenset(*arguments, *options).out)
        for name, value in schedule_fields(schedule, 5).items():
            assert f"{name}={value}" in plan["dm, 5 per class"]
