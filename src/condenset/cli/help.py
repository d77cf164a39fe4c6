"""The class of all commands, and their `--help`: options in panels, the most used ones first, examples at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from condenset.cli.examples import EXAMPLES
from condenset.errors import UserError

MAX_UNGROUPED = 12  # options of a command with a single panel
NAME_WIDTH = 25  # of the left column, so that the texts of all panels begin at the same place
MAX_WIDTH = 100  # longer lines are hard to read
MOST_USED = "Most used"
PANELS: Mapping[str, tuple[str, ...]] = {  # the options of large commands, in the order of the help
    MOST_USED: (
        *("--dataset", "--scale", "--ipc", "--method", "--size", "--test", "--network", "--protocol"),
        *("--num", "--nets", "--epochs", "--out", "--dry-run"),
    ),
    "Data": (
        *("--train", "--test-share", "--val-share", "--data-dir", "--fit", "--background", "--white-level", "--nested"),
        *("--skip-bad", "--classes", "--images"),
    ),
    "Method": (
        *("--iterations", "--lr", "--schedule", "--augment", "--init", "--seed", "--set", "--config", "--pool"),
        *("--ipc-share", "--allow-fewer", "--zca", "--edges"),
    ),
    "Evaluation": ("--evaluate", "--whole", "--whole-epochs", "--sets", "--own-steps", "--per-class"),
    "Machine": ("--device", "--precision", "--memory", "--gpus", "--engine", "--address", "--gpus-per-worker"),
    "Output": ("--overwrite", "--report", "--no-report", "--snapshots", "--tensorboard", "--json", "--help"),
}


class HelpCommand(TyperCommand):
    """A command whose help has panels and examples, and whose options with one value cannot be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # shell completion
            return super().parse_args(ctx, args)
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))  # a parameter for each time that it is given
        options: list[Any] = [item for item in given if item.param_type_name == "option"]
        for item in options:
            if options.count(item) > 1 and not (item.multiple or item.is_flag):
                raise UserError(f"{item.opts[0]} takes one value, but was given {options.count(item)} times")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_help(self, ctx)


class HelpGroup(TyperGroup):
    """A group of commands whose help has panels and examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_help(self, ctx)


def print_help(command: Any, context: Any) -> None:
    """Print usage, description, arguments, options, commands and examples of a command."""
    console = Console(highlight=False)
    width = min(console.width, MAX_WIDTH)
    for part in _render(command, context):
        console.print(part, width=width)


def _render(command: Any, context: Any) -> Iterable[RenderableType]:
    parameters = [item for item in command.get_params(context) if not getattr(item, "hidden", False)]
    arguments = [item for item in parameters if item.param_type_name == "argument"]
    options = [item for item in parameters if item.param_type_name == "option"]
    yield Padding(Text(_usage(command, context, arguments), style="bold"), (1, 1, 0, 1))
    for paragraph in (command.help or "").strip().split("\n\n"):
        yield Padding(Text(" ".join(paragraph.split())), (1, 1, 0, 1))
    yield ""
    if arguments:
        yield _panel("Arguments", [(_argument_name(item), item.help or "") for item in arguments])
    commands = _list_commands(command, context)
    width = max((len(name) for group in commands.values() for name, _ in group), default=0)
    for title, group in commands.items():
        yield _panel(title, group, width)
    for title, items in group_options(options).items():
        yield _panel(title, [(option_name(item), _option_text(item)) for item in items])
    if examples := EXAMPLES.get(context.command_path):
        yield _examples_panel(examples)


def group_options(options: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the options of a command by panel. A small command has one panel."""
    if len(options) <= MAX_UNGROUPED:
        return {"Options": list(options)}
    by_flag = {flag: item for item in options for flag in item.opts}
    panels = {title: [by_flag[flag] for flag in flags if flag in by_flag] for title, flags in PANELS.items()}
    grouped = [item for items in panels.values() for item in items]
    panels["Other"] = [item for item in options if item not in grouped]  # a test keeps it empty
    return {title: items for title, items in panels.items() if items}


def option_name(option: Any) -> str:
    """Return an option with its value, such as `--ipc NUMBERS`, `--whole/--no-whole` or `-h, --help`."""
    shorts = [flag for flag in option.opts if not flag.startswith("--")]
    long = next(flag for flag in option.opts if flag.startswith("--"))
    name = "/".join([", ".join([*shorts, long]), *option.secondary_opts])
    return name if option.is_flag or not option.metavar else f"{name} {option.metavar}"


def _option_text(option: Any) -> str:
    return f"{option.help or ''}{' Required.' if option.required else ''}"


def _usage(command: Any, context: Any, arguments: Sequence[Any]) -> str:
    words = [name if item.required else f"[{name}]" for item in arguments for name in (_argument_name(item),)]
    words += ["COMMAND …"] if isinstance(command, TyperGroup) else []
    return " ".join(("Usage:", context.command_path, "[OPTIONS]", *words))


def _argument_name(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return f"{name} …" if argument.nargs == -1 else name


def _list_commands(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the names and the first sentences of the commands of a group, by panel."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in command.list_commands(context) if isinstance(command, TyperGroup) else ():
        item = command.get_command(context, name)
        assert item is not None
        title = getattr(item, "rich_help_panel", None)
        summary = " ".join((item.help or "").split()).partition(". ")[0].removesuffix(".") + "."
        panels.setdefault(title if isinstance(title, str) else "Commands", []).append((name, summary))
    return panels


def _panel(title: str, rows: Sequence[tuple[str, str]], width: int = NAME_WIDTH) -> Panel:
    """Return a panel with a name and a text per row. The text of a long name begins on the next line."""
    parts: list[RenderableType] = []
    for name, text in rows:
        fits = len(name) <= width
        if not fits:
            parts.append(Text(name, style="bold cyan"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=width)
        table.add_column(overflow="fold")
        table.add_row(Text(name if fits else "", style="bold cyan"), Text(" ".join(text.split())))
        parts.append(table)
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim")


def _examples_panel(examples: Sequence[tuple[str, str]]) -> Panel:
    lines: list[RenderableType] = []
    for line, comment in examples:
        lines += [Text(f"# {comment}", style="dim"), Text(line, style="bold")]
    return Panel(Group(*lines), title="Examples", title_align="left", border_style="dim")
