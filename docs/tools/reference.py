"""Generate the reference pages of the site: the Python API, every command, and the fields of every method."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import typer

import condenset as cs
from condenset.cli.examples import EXAMPLES
from condenset.cli.help import group_options, option_name
from condenset.cli.main import app
from condenset.methods.registry import describe_methods

API_PAGES = {  # package of a public name -> file and title of its page
    "pipeline": ("condense", "Condense and evaluate"),
    "data": ("data", "Data and sets"),
    "training": ("evaluation", "Protocols and scores"),
    "methods": ("methods", "Methods and recipes"),
    "networks": ("networks", "Networks"),
    "continual": ("continual", "Continual learning"),
    "search": ("search", "Architecture search"),
}
OTHER_PAGE = ("other", "Other names")
FURTHER_PAGES = {  # names outside condenset.__all__ that the guides use
    ("sklearn", "scikit-learn"): ("sklearn.Condenser",),
    ("extending", "Extend condenset"): (
        "methods.common.build_condensed_set",
        "methods.common.class_labels",
        "methods.common.images_per_class",
        "methods.problem.LearningProblem",
        "networks.Architecture",
        "networks.Option",
        "data.DatasetSource",
        "data.LazyDataset",
        "data.make_lazy_split",
        "data.check_dataset",
    ),
}


def generate_pages() -> dict[str, str]:
    """Return the text of all generated pages by path below docs/."""
    return {**generate_api(), **generate_commands(), "reference/methods.md": generate_methods()}


def generate_api() -> dict[str, str]:
    """Return one page per package, with a directive of mkdocstrings for each public name."""
    pages: dict[tuple[str, str], list[str]] = {page: [] for page in (*API_PAGES.values(), OTHER_PAGE)}
    for name in cs.__all__:
        pages[API_PAGES.get(find_package(name), OTHER_PAGE)].append(name)
    sorted_pages = {page: sorted_names(names) for page, names in pages.items() if names}
    return {
        f"reference/api/{file}.md": "\n".join([f"# {title}\n", *(f"::: condenset.{name}\n" for name in names)])
        for (file, title), names in (sorted_pages | FURTHER_PAGES).items()
    }


def find_package(name: str) -> str:
    """Return the package that a public name comes from, such as `data`."""
    module = inspect.getmodule(getattr(cs, name)) or inspect.getmodule(type(getattr(cs, name)))
    parts = module.__name__.split(".") if module else []
    return parts[1] if len(parts) > 1 else ""


def sorted_names(names: Iterable[str]) -> list[str]:
    """Return functions before classes and constants, each in alphabetical order."""
    return sorted(names, key=lambda name: (not name.islower(), name.isupper(), name.lower()))


def generate_commands() -> dict[str, str]:
    """Return one page per command, and one per group of commands."""
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="condenset")
    pages = {}
    for name, command in sorted(group.commands.items()):
        if not command.hidden:
            text = describe_command(command, f"condenset {name}", context)
            pages[f"reference/commands/{name}.md"] = f"# condenset {name}\n\n{text}"
    return pages


def describe_command(command: Any, path: str, parent: Any, level: int = 2) -> str:
    """Return usage, help, options and examples of a command, and those of its subcommands."""
    context = command.context_class(command, info_name=path.split()[-1], parent=parent)
    heading = "#" * level
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    words = [item.metavar or item.name.upper() for item in arguments]
    blocks = [escape(paragraph) for paragraph in (command.help or "").split("\n\n")]
    blocks.append(f"```\n{' '.join([path, '[OPTIONS]', *words])}\n```")
    rows = [(word, item.help or "") for word, item in zip(words, arguments, strict=True)]
    for title, items in ({} if not options else group_options(options)).items():
        described = [(option_name(item), item.help or "") for item in items]
        blocks.append(f"{heading} {title}\n\n{format_rows([*rows, *described])}")
        rows = []
    blocks += [format_rows(rows)] if rows else []
    if examples := EXAMPLES.get(path):
        lines = [f"# {comment}\n{line}" for line, comment in examples]
        blocks.append(f"{heading} Examples\n\n```\n" + "\n".join(lines) + "\n```")
    for name, subcommand in getattr(command, "commands", {}).items():
        blocks.append(f"{heading} {path} {name}")
        blocks.append(describe_command(subcommand, f"{path} {name}", context, level + 1))
    return "\n\n".join(block for block in blocks if block) + "\n"


def format_rows(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and their meanings as a table."""
    return "\n".join(["| name | meaning |", "|---|---|", *(f"| `{name}` | {escape(text)} |" for name, text in rows)])


def generate_methods() -> str:
    """Return the page of all methods with their fields."""
    intro = (
        "# Fields of the methods\n\nSet a field with `--set FIELD=VALUE`, or as a keyword of `cs.condense`. "
        "[All methods](../concepts/methods.md) explains how they work.\n"
    )
    return intro + "\n" + "\n".join(describe_method(entry) for entry in describe_methods())


def describe_method(entry: dict[str, Any]) -> str:
    """Return the section of a method."""
    rows = [
        f"| `{field['name']}` | {format_default(field)} | {escape(field['description'])} |" for field in entry["fields"]
    ]
    parts = [f"## `{entry['name']}`", escape(entry["description"])]
    if entry["source"]:
        parts.append(f"Source: {escape(entry['source'])}.")
    if entry["schedules"]:
        names = ", ".join(f"`{name}`" for name in entry["schedules"])
        parts.append(f"Schedules with other defaults: {names}. See [Schedules](../guides/condense.md#schedules).")
    table = "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])
    return "\n\n".join([*parts, table]) + "\n"


def format_default(field: dict[str, Any]) -> str:
    """Return the default of a field, and its choices if there are any."""
    choices = field.get("choices")
    default = f"`{field['default']!r}`"
    return f"{default} of {', '.join(f'`{choice}`' for choice in choices)}" if choices else default


def escape(text: str) -> str:
    """Return text for a table cell: one line, without characters that Markdown would interpret."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
