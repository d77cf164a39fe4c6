"""The command `condenset methods`."""

from __future__ import annotations

from condenset.cli.console import format_options, print_described
from condenset.cli.options import AsJson


def methods_command(as_json: AsJson = False) -> None:
    """List the methods and their options with defaults."""
    from condenset.methods.registry import describe_methods

    hidden = ("ipc", "allow_fewer")  # fields of all methods
    entries = describe_methods()
    rows = []
    for entry in entries:
        schedules = f"--schedule [{', '.join(entry['schedules'])}], " if entry["schedules"] else ""
        options = format_options(field for field in entry["fields"] if field["name"] not in hidden)
        rows.append((entry["name"], entry["description"], schedules + options))
    print_described(("method", "description", "options"), rows, entries, as_json)
