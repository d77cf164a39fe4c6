"""The command `condenset methods`."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from condenset.cli.completion import METHODS, complete_from
from condenset.cli.console import print_json, print_line
from condenset.cli.options import AsJson
from condenset.cli.startup import import_torch

SHOWN_IPC = 10  # some defaults depend on the images per class and on the image size
SHOWN_SIZE = 32


def methods_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=complete_from(METHODS),
            help="Method whose settings to print (default: none).",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or print the settings of one method with their defaults."""
    import_torch(methods=[name] if name else None)

    from condenset.methods.registry import METHODS as REGISTRY
    from condenset.methods.registry import describe_methods

    if name is not None:
        REGISTRY.lookup(name)
    entries = [entry for entry in describe_methods() if name in (None, entry["name"])]
    if as_json:
        print_json(entries)  # fields of other packages may have any default
    elif name is None:
        _print_methods(entries)
    else:
        _print_settings(entries[0])


def _print_methods(entries: list[dict[str, Any]]) -> None:
    """Print one line per method. A terminal shows as many words of the summary as fit the line."""
    name_width = max(len(entry["name"]) for entry in entries)
    width = shutil.get_terminal_size().columns - name_width - 2
    for entry in entries:
        summary = entry["description"]
        if sys.stdout.isatty():
            summary = textwrap.shorten(summary, max(width, 20), placeholder=" …")
        print_line(f"{entry['name']:{name_width}}  {summary}")
    print_line()
    print_line("Settings of a method: condenset methods NAME")


def _print_settings(entry: Mapping[str, Any]) -> None:
    """Print summary and source of a method, and its settings: name, default, choices and description."""
    schedules = entry["schedules"]
    schedule_note = f"of --schedule {schedules[0]} [{', '.join(schedules[1:])}] " if schedules else ""
    note = f"Defaults {schedule_note}for {SHOWN_IPC} images per class of {SHOWN_SIZE}x{SHOWN_SIZE} pixels"
    defaults = [_default_values(entry["name"], schedule) for schedule in schedules or [None]]
    _print_wrapped(f"{entry['name']}: {entry['description']}")
    if entry["source"]:
        _print_wrapped(f"Source: {entry['source']}")
    print_line()
    _print_wrapped(f"{note}. Change one with --set {entry['name']}.FIELD=VALUE.")
    for field in entry["fields"]:
        if field["name"] != "ipc":  # it has its own option
            print_line()
            _print_wrapped(" ".join(_describe_setting(field, [values[field["name"]] for values in defaults])))
            _print_wrapped(field["description"], indent="    ")


def _default_values(method: str, schedule: str | None) -> dict[str, Any]:
    """Return the fields of a recipe that sets none of them."""
    from condenset.methods.registry import make_recipe

    return make_recipe(method, ipc=SHOWN_IPC, name="", size=SHOWN_SIZE, schedule=schedule).config_fields()


def _describe_setting(field: Mapping[str, Any], values: list[Any]) -> Iterator[str]:
    """Yield name and default of a setting, the defaults of further schedules that differ, and the valid choices."""
    yield f"{field['name']} = {_format_value(values[0])}"
    others = [value for value in values[1:] if value != values[0]]
    if others:
        yield f"[{', '.join(map(_format_value, others))}]"
    if "choices" in field:
        yield f"(choices: {', '.join(field['choices'])})"


def _format_value(value: object) -> str:
    """Return a value as `--set` takes it; empty text is visible."""
    return str(value).lower() if isinstance(value, bool | None) else str(value) or '""'


def _print_wrapped(text: str, indent: str = "") -> None:
    """Print text in lines that fit the terminal, without a break inside a word."""
    width = shutil.get_terminal_size().columns
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, **options):
        print_line(line)
