"""The command `condenset methods`."""

from __future__ import annotations

import json

from condenset import METHODS
from helpers.command_line import CommandRunner


def test_methods_lists_every_method(condenset: CommandRunner) -> None:
    lines = condenset("methods").out.splitlines()
    assert lines[0].split() == ["method", "description", "options"]
    assert any("init='real' [real, noise]" in line and "allow_fewer" not in line for line in lines)
    rows = json.loads(condenset("methods", "--json").out)
    assert {row["name"] for row in rows} == METHODS.keys()
    assert all(row["description"] for row in rows)
    assert [(row["name"], row["schedules"]) for row in rows if row["schedules"]] == [("dm", ["fast", "paper"])]
    assert [line.split()[0] for line in lines if "--schedule [fast, paper]" in line] == ["dm"]


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
    assert "kernel" in {field["name"] for field in rows["mmd"] if "choices" in field}
