"""The command `condenset methods`."""

from __future__ import annotations

from condenset.cli.console import print_entries
from condenset.cli.options import AsJson


def methods_command(as_json: AsJson = False) -> None:
    """List the methods and their options with defaults."""
    from condenset.methods.registry import describe_methods

    print_entries(("method", "description", "options"), ("name", "description", "options"), describe_methods(), as_json)
