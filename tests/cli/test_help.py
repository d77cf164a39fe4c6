"""The help of every command: panels and examples."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from condenset.cli.examples import EXAMPLES
from condenset.cli.help import MAX_UNGROUPED, MOST_USED, group_options, option_name
from condenset.cli.main import app
from helpers.command_line import CommandRunner
from helpers.data_files import make_classes

ROOT: Any = typer.main.get_command(app)
QUICK_COMMANDS = ("condenset", "show", "status", "methods", "networks", "paper", "data list", "data check")


def walk(command: Any = ROOT, path: str = "condenset") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, item in getattr(command, "commands", {}).items():
        yield from walk(item, f"{path} {name}")


COMMANDS = dict(walk())


def find_command(line: str) -> tuple[str, Any, list[str]]:
    """Return the path, the command and the arguments of a command line."""
    words = shlex.split(line)
    path, command = words.pop(0), ROOT
    while words and words[0] in getattr(command, "commands", {}):
        command, path = command.commands[words[0]], f"{path} {words.pop(0)}"
    return path, command, words


def list_options(command: Any) -> list[Any]:
    with command.make_context("condenset", [], resilient_parsing=True) as context:
        return [item for item in command.get_params(context) if item.param_type_name == "option"]


@pytest.mark.parametrize("path", COMMANDS)
def test_help_ends_with_two_examples(condenset: CommandRunner, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = condenset(*path.split()[1:], "--help").out.rstrip().splitlines()
    start = next(number for number, line in enumerate(lines) if "─ Examples ─" in line)
    shown = [line.strip("│ ") for line in lines[start + 1 : -1]]
    assert shown == [text for line, comment in EXAMPLES[path] for text in (f"# {comment}", line)]
    assert len(EXAMPLES[path]) == 2 and max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_a_panel_and_the_name_of_its_value(path: str) -> None:
    options = list_options(COMMANDS[path])
    assert all(item.is_flag or item.metavar or "--help" in item.opts for item in options)
    assert all(item.help.endswith(".") for item in options)
    panels = group_options(options)
    assert sum(map(len, panels.values())) == len(options)
    if len(options) > MAX_UNGROUPED:
        assert [option_name(item) for item in panels.get("Other", ())] == [], "add them to PANELS in cli/help.py"
        assert next(iter(panels)) == MOST_USED and 3 <= len(panels[MOST_USED]) <= 11


@pytest.fixture
def directory(condenset: CommandRunner, tmp_path: Path) -> Path:
    """A directory with what the examples need: `photos`, and a run in `runs/digits`."""
    make_classes(tmp_path / "photos", "ab", count=20, size=(40, 40))
    run = ("condense", "digits", "--method", "random", "--ipc", 1, "--out", "runs/digits")
    assert condenset(*run).code == 0
    return tmp_path


def test_examples_work(condenset: CommandRunner, directory: Path) -> None:
    run_commands = set()
    for line, _ in (example for path in COMMANDS for example in EXAMPLES[path]):
        path, command, words = find_command(line)
        with command.make_context(path, list(words)):  # it parses the words
            pass
        name = path.removeprefix("condenset ")
        has_dry_run = any("--dry-run" in item.opts for item in command.params) and words
        if has_dry_run or name in QUICK_COMMANDS:
            result = condenset(*shlex.split(line)[1:], *(["--dry-run"] if has_dry_run else []))
            assert result.code == 0, (line, result.err)
            run_commands.add(name)
    assert run_commands >= {"run", "compare", "condense", "paper", "show", "status", "data check"}
