"""The tables of the documentation equal the records that they come from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import PUBLISHED, RESULTS, find_published, format_accuracy, merge_records
from results import TABLE, fill_tables, list_pages, make_table, parse_spec

from condenset.methods import METHODS, Recipe
from condenset.methods.registry import make_recipe
from condenset.pipeline.request import parse_settings
from helpers.command_parsing import parse_command
from helpers.pages import name_of

RECORDS = sorted(path for path in RESULTS.glob("*.json") if path.name != PUBLISHED)
NUM_CLASSES = {"digits": 10, "mnist": 10, "cifar10": 10, "cifar100": 100, "tinyimagenet": 200}
SIZES = {"digits": 8, "mnist": 28, "cifar10": 32, "cifar100": 32, "tinyimagenet": 64}


@pytest.mark.parametrize("page", list_pages(), ids=name_of)
def test_tables_equal_the_records(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill_tables(text) == text, "run: python docs/tools/results.py"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_records_state_their_command(path: Path) -> None:
    for record in json.loads(path.read_text(encoding="utf-8")):
        assert record["command"]
        assert all(0 <= accuracy <= 1 for accuracy in record.get("accuracies", []))
        for _ in parse_commands(record):
            pass  # it raises an error for an unknown option


def parse_commands(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of each `condenset` command of a record."""
    for command in record["command"].split("; "):
        program, *words = shlex.split(command)
        if program == "condenset":
            yield words[0], parse_command(words)


def plan_recipe(record: dict[str, Any], options: dict[str, Any]) -> Recipe:
    """Return the recipe that a command would use for the method and the size of a record."""
    method = record["method"]
    for_all, for_methods = parse_settings(options["settings"])
    named = {name: options[name] for name in ("iterations", "lr") if options.get(name) is not None}
    fields = {**for_all, **for_methods.get(method, {}), **named}
    schedule = options["schedule"] if METHODS[method].schedules else None
    size = SIZES[record["dataset"]]
    return make_recipe(method, ipc=record["ipc"], name=record["dataset"], size=size, schedule=schedule, **fields)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_commands_plan_the_iterations_and_images_of_their_records(path: Path) -> None:
    """A changed default would make a published number impossible to repeat."""
    for record in json.loads(path.read_text(encoding="utf-8")):
        if record.get("method") in METHODS and record.get("iterations"):
            for name, options in parse_commands(record):
                if name in ("run", "compare", "condense"):
                    planned: Any = plan_recipe(record, options)
                    assert planned.iterations == record["iterations"], record["command"]
                    num_images = NUM_CLASSES[record["dataset"]] * record["ipc"] * planned.layout.num_parts
                    assert num_images == record.get("images", num_images), record["command"]
                    assert planned.lr == record.get("condense_lr", planned.lr), record["command"]


def test_results_pages_have_only_generated_tables_of_accuracies() -> None:
    for page in sorted(RESULTS.glob("*.md")):
        text = TABLE.sub("", page.read_text(encoding="utf-8"))
        rows = [line for line in text.splitlines() if line.startswith("|") and re.search(r"\d ± \d", line)]
        assert rows == [], page.name


def test_every_file_of_records_is_shown() -> None:
    specs = [match[1] for page in list_pages() for match in TABLE.findall(page.read_text(encoding="utf-8"))]
    patterns = {file.partition("[")[0] for spec in specs for file in parse_spec(spec).files}
    hidden = [path.name for path in RECORDS if not any(path.match(pattern) for pattern in patterns)]
    assert hidden == []


def test_a_changed_record_changes_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    record = {
        "dataset": "cifar10",
        "method": "dm",
        "ipc": 50,
        "accuracy_mean": 0.7,
        "accuracy_std": 0.01,
        "command": "",
    }
    (tmp_path / "a.json").write_text(json.dumps([record]))
    (tmp_path / PUBLISHED).write_text("[]")
    monkeypatch.setattr("records.RESULTS", tmp_path)
    monkeypatch.setattr("results.RESULTS", tmp_path)
    assert make_table("a.json columns=label,ipc,accuracy").endswith("| `dm` | 50 | 70.0 ± 1.0 |")


def test_published_numbers_match_the_setting() -> None:
    setting = {"dataset": "cifar10", "method": "dm", "ipc": 50}
    assert find_published({**setting, "norm": "instance"}) == "63.0 ± 0.4"
    assert find_published({**setting, "norm": "batch"}) == "65.2 ± 0.4"
    assert find_published({**setting, "protocol": "modern"}) == ""


def test_merged_records_have_the_networks_of_all() -> None:
    merged = merge_records([{"accuracies": [0.5, 0.7]}, {"accuracies": [0.6, 0.6]}])
    assert merged["num_networks"] == 4 and merged["sets"] == 2
    assert format_accuracy(merged) == "60.0 ± 7.1"
