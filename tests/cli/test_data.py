"""`condenset data` and `condenset methods`."""

from __future__ import annotations

import json
from pathlib import Path

from condenset import METHODS, data
from helpers.command_line import CommandRunner


def test_data_import_makes_a_named_dataset(condenset: CommandRunner, toy: Path) -> None:
    result = condenset("data", "import", toy, "animals")
    assert result.code == 0
    assert "animals is in" in result.out
    error_line = condenset("data", "import", toy, "animals").error_line
    assert "exists already" in error_line and "--overwrite" in error_line
    assert condenset("data", "import", toy, "animals", "--overwrite").code == 0
    assert "imported" in condenset("data", "list").out
    assert data.load("animals").train.allow_hflip
    assert condenset("data", "import", toy, "letters", "--no-flip").code == 0
    assert not data.load("letters").train.allow_hflip
    assert condenset("data", "check", "animals").out.startswith("animals: 36 train and 36 test images of 1x8x8")


def test_data_commands_print_json(condenset: CommandRunner, toy: Path) -> None:
    assert json.loads(condenset("data", "check", toy, "--json").out)["num_train"] == 36
    entries = json.loads(condenset("data", "list", "--json").out)
    assert {"name", "state", "num_train"} <= set(entries[0])


def test_data_get_of_a_bundled_dataset_downloads_nothing(condenset: CommandRunner, tmp_path: Path) -> None:
    assert "no download is needed" in condenset("data", "get", "digits").out
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_methods_lists_every_method(condenset: CommandRunner) -> None:
    assert condenset("methods").out.splitlines()[0].split() == ["method", "description", "options"]
    rows = json.loads(condenset("methods", "--json").out)
    assert {row["name"] for row in rows} == METHODS.keys()
    assert all(row["description"] for row in rows)
