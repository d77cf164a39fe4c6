"""The command `condenset methods`."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from condenset import METHODS
from condenset.methods.registry import make_recipe
from helpers.command_line import CommandRunner


def test_methods_lists_every_method(condenset: CommandRunner) -> None:
    lines = condenset("methods").out.splitlines()
    assert lines[:-2] == [f"{name:10}  {method.summary}" for name, method in METHODS.items()]
    assert lines[-1] == "Settings of a method: condenset methods NAME"
    rows = json.loads(condenset("methods", "--json").out)
    assert {row["name"] for row in rows} == METHODS.keys()
    assert all(row["description"] for row in rows)
    assert [(row["name"], row["schedules"]) for row in rows if row["schedules"]] == [("dm", ["fast", "paper"])]


def test_published_methods_name_their_source(condenset: CommandRunner) -> None:
    sources = [method.source for method in METHODS.values() if method.source]
    assert [name for name, method in METHODS.items() if not method.source] == ["random", "mmd", "dmplus"]
    assert all(re.fullmatch(r".*, .*20\d\d", source) for source in sources)
    assert len(set(sources)) == len(sources)  # a variant does not inherit that of its parent
    assert "\nSource: Zhang et al., IJCAI 2024\n" in condenset("methods", "dance").out
    assert "Source" not in condenset("methods", "dmplus").out
    assert json.loads(condenset("methods", "dm", "--json").out)[0]["source"] == "Zhao and Bilen, WACV 2023"


def test_json_has_the_fields_of_every_method(condenset: CommandRunner) -> None:
    rows = {row["name"]: row["fields"] for row in json.loads(condenset("methods", "--json").out)}
    assert all(field["description"] for fields in rows.values() for field in fields)
    fields = {field["name"]: field for field in rows["dsa"]}
    assert fields["lr"] == {
        "name": "lr",
        "type": "float",
        "default": 0.1,
        "description": "Learning rate of the images.",
    }
    assert fields["init"]["choices"] == ["real", "noise"]
    assert (fields["outer_steps"]["type"], fields["outer_steps"]["default"]) == ("int | None", None)
    assert "kernel" in {field["name"] for field in rows["kip"] if "choices" in field}
    assert [row["fields"] for row in json.loads(condenset("methods", "dsa", "--json").out)] == [rows["dsa"]]


def test_a_terminal_shows_a_line_per_method(condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = condenset("methods").out.splitlines()
    assert [line.split()[0] for line in lines[:-2]] == list(METHODS) and max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_its_settings_with_defaults(name: str, condenset: CommandRunner) -> None:
    out = condenset("methods", name).out
    assert out.startswith(f"{name}: ") and max(map(len, out.splitlines())) <= 80
    recipe = make_recipe(name, ipc=10, name="", size=32)
    fields = [line.partition(" = ")[0] for line in out.splitlines() if " = " in line]
    assert fields == [field.name for field in dataclasses.fields(recipe) if field.name != "ipc"]


def test_settings_show_the_schedules(condenset: CommandRunner) -> None:
    out = condenset("methods", "dm").out
    fast, paper = (make_recipe("dm", ipc=10, name="", size=32, schedule=name) for name in ("fast", "paper"))
    assert f"\niterations = {fast.iterations} [{paper.iterations}]\n    Number of networks that are sampled.\n" in out
    assert "\ninit = real (choices: real, noise)\n" in out and "--schedule fast [paper]" in out
    assert "\nouter_steps = 10\n" in condenset("methods", "dsa").out  # not None, which stands for this number
    assert "method cannot be 'dmm'; did you mean 'dm'?" in condenset("methods", "dmm").error_line
