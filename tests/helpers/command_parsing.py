"""Parse commands as the command line does, without running them."""

from __future__ import annotations

import functools
from typing import Any

import typer

from condenset.cli.main import app

EAGER_OPTIONS = {"--help", "--version", "--install-completion", "--show-completion"}  # parsing them runs them


@functools.cache
def load_app() -> Any:
    return typer.main.get_command(app)


def parse_command(words: list[str]) -> dict[str, Any]:
    """Parse the words after `condenset`, and return the values of the command's parameters by name.

    Raises:
        Exception: An error of typer, for an unknown command or option or a value of the wrong type.
    """
    command = load_app()
    context = command.context_class(command, info_name="condenset")
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, words
        command, words = command.commands[words[0]], words[1:]
        context = command.context_class(command, info_name=command.name, parent=context)
    if words and not EAGER_OPTIONS & set(words):
        command.parse_args(context, words)
    values: dict[str, Any] = context.params
    return values
