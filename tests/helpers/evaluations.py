"""Run `condenset evaluate` and read what it prints."""

from __future__ import annotations

import json
import warnings
from typing import Any

from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner

QUICK = (*TINY_EVALUATION, "--device", "cpu")
NETWORK = TINY_NETWORK[1]


def evaluate(condenset: CommandRunner, *arguments: object) -> list[dict[str, Any]]:
    """Run `condenset evaluate` and return its records."""
    records: list[dict[str, Any]] = json.loads(condenset("evaluate", *arguments, "--json").out)
    return records


def read_table(text: str) -> list[list[str]]:
    """Return the cells of the first table in the output of a command."""
    lines = text.split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def warning_lines(condenset: CommandRunner, *arguments: object) -> list[str]:
    """Run a command and return the warnings that it prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        return [line for line in condenset(*arguments).err.splitlines() if line.startswith("condenset: warning")]
