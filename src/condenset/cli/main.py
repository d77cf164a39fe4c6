"""The command line `condenset`: its commands and how errors are reported."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NoReturn

import typer

from condenset import __version__
from condenset.cli.console import one_line_warnings, print_line, print_lines
from condenset.cli.data import app as data_app
from condenset.cli.doctor import doctor_command
from condenset.cli.evaluate import evaluate_command
from condenset.cli.exchange import export_command, import_set_command
from condenset.cli.help import HelpCommand, HelpGroup
from condenset.cli.methods import methods_command
from condenset.cli.networks import app as networks_app
from condenset.cli.paper import paper_command
from condenset.cli.plan import plan_command
from condenset.cli.report import report_command
from condenset.cli.resume import resume_command
from condenset.cli.run import COMPARE_HELP, condense_command, run_command
from condenset.cli.serve import serve_command
from condenset.cli.show import show_command
from condenset.cli.signals import exit_on_signal
from condenset.cli.status import status_command
from condenset.cli.streams import OutputStream, guard_output
from condenset.errors import UserError, use_flags

COMPLETION_VARIABLE = "_CONDENSET_COMPLETE"  # set by the completion scripts of shells

app = typer.Typer(
    cls=HelpGroup,
    help="Condense a large labelled image dataset into a small synthetic one that trains networks nearly as well.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add_commands(panel: str, /, **commands: Callable[..., None]) -> None:
    for name, function in commands.items():
        text = COMPARE_HELP if name == "compare" else None
        app.command(name.replace("_", "-"), cls=HelpCommand, help=text, rich_help_panel=panel)(function)


_add_commands("Condense", run=run_command, compare=run_command, condense=condense_command, plan=plan_command)
_add_commands("Follow a run", status=status_command, serve=serve_command, resume=resume_command)
_add_commands("Use the results", report=report_command, evaluate=evaluate_command, show=show_command)
_add_commands("Use the results", export=export_command, import_set=import_set_command)
_add_commands("Find your way", methods=methods_command, paper=paper_command, doctor=doctor_command)
app.add_typer(networks_app, name="networks", rich_help_panel="Find your way")
app.add_typer(data_app, name="data", rich_help_panel="Find your way")


def _print_version(requested: bool) -> None:
    if requested:
        print_line(f"condenset {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit.

    A mistake of the user prints one line and exits with 2. If only the output cannot be written, the command completes
    and exits with 1. A bug prints a traceback. In a thread other than the main one, no signal handlers are installed.

    Args:
        arguments: The words after `condenset`. Default: those of the process.

    Raises:
        SystemExit: Always, unless there is a bug.
    """
    if COMPLETION_VARIABLE in os.environ:  # a shell asks for the completion of a word
        _build_command().main(prog_name="condenset", complete_var=COMPLETION_VARIABLE)
    with guard_output() as streams:
        code = _run_command(sys.argv[1:] if arguments is None else list(arguments))
        code = code or _report_failed_output(streams)
    raise SystemExit(code)


@functools.cache  # it takes longer than some commands, which callers of `main` may run many times
def _build_command() -> Any:
    """Return the command with all its subcommands."""
    return typer.main.get_command(app)


def _run_command(words: list[str]) -> int:
    """Run a command, print its error if it fails, and return the exit code."""
    command = _build_command()
    try:
        # Not command.main(), which would exit on a KeyboardInterrupt before exit_on_signal sees it.
        with (
            exit_on_signal(),
            one_line_warnings(),
            command.make_context("condenset", words) as context,
            use_flags(lambda name: _list_flags(command, context.invoked_subcommand).get(name)),
        ):
            command.invoke(context)
    except typer.Exit as error:  # of --help and --version
        return error.exit_code
    except UserError as error:
        return _print_error(str(error), error.details)
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        return _print_error("the working directory does not exist any more: change to another one")
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.ENAMETOOLONG:
            raise
        return _print_error(f"no access to {error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # errors of typer have it, such as for an unknown option
            raise
        return _print_error(_describe_number_error(error) or error.format_message())
    return 0


def _describe_number_error(error: Any) -> str:
    """Return the message about an option that is not a number, with the value, which typer leaves out; else nothing."""
    if (parameter := getattr(error, "param", None)) is None or not hasattr(error.__cause__, "errors"):
        return ""
    problem = error.__cause__.errors()[0]
    kinds = {"int": "a whole number", "float": "a number"}
    kind = kinds.get(problem["type"].partition("_")[0])
    return f"{parameter.opts[0]} must be {kind}, but got {problem['input']!r}" if kind else ""


def _report_failed_output(streams: Iterable[OutputStream]) -> int:
    """Print which stream could not be written, and return the exit code."""
    for stream in streams:
        stream.flush()
    errors = {stream.name: stream.error for stream in streams if stream.error}
    for name, error in errors.items():
        if not isinstance(error, BrokenPipeError):  # the reader, such as `head`, needs no more
            print_line(f"condenset: {name} cannot be written: {error.strerror}", stderr=True)
    return 1 if errors else 0


def _list_flags(command: Any, name: str | None) -> dict[str, str]:
    """Return the flags of a subcommand by the Python names of its options; those of all commands if it is a group."""
    subcommand = command.commands[name] if name else command
    commands = [subcommand, *getattr(subcommand, "commands", {}).values()]
    options = [parameter for item in commands for parameter in item.params if parameter.opts[0].startswith("--")]
    return {option.name: option.opts[0] for option in options}


def _print_error(message: str, details: str = "") -> int:
    """Print the one line of an error and its details, and return the exit code."""
    if message:  # it is empty if typer has printed the help instead
        print_line(f"condenset: {' '.join(message.split())}", stderr=True)
    if details:
        print_lines(details, stderr=True)
    return 2
