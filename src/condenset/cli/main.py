"""The command line `condenset`: its commands and how errors are reported."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from condenset import __version__
from condenset.cli.data import app as data_app
from condenset.cli.evaluate import evaluate_command
from condenset.cli.methods import methods_command
from condenset.cli.networks import app as networks_app
from condenset.cli.paper import paper_command
from condenset.cli.run import COMPARE_HELP, condense_command, resume_command, run_command
from condenset.cli.show import show_command
from condenset.cli.signals import exit_on_signal
from condenset.errors import UserError


class CommandGroup(TyperGroup):
    """All commands. A signal stops any of them."""

    def invoke(self, ctx: Any) -> Any:
        with exit_on_signal():  # inside typer, which would turn a KeyboardInterrupt into an exit without a message
            return super().invoke(ctx)


app = typer.Typer(
    help="Condense a large labelled image dataset into a small synthetic one that trains networks nearly as well.",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command)
app.command("compare", help=COMPARE_HELP)(run_command)
app.command("condense")(condense_command)
app.command("resume")(resume_command)
app.command("evaluate")(evaluate_command)
app.command("show")(show_command)
app.command("methods")(methods_command)
app.command("paper")(paper_command)
app.add_typer(networks_app, name="networks")
app.add_typer(data_app, name="data")


def _print_version(requested: bool) -> None:
    if requested:
        print(f"condenset {__version__}")
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

    A mistake of the user prints one line and exits with 2. A bug prints a traceback. In a thread other than the main
    one, no signal handlers are installed.

    Args:
        arguments: The words after `condenset`. Default: those of the process.

    Raises:
        SystemExit: Always, unless there is a bug.
    """
    try:
        status = typer.main.get_command(app).main(arguments, prog_name="condenset", standalone_mode=False)
        sys.stdout.flush()  # raises BrokenPipeError here instead of at exit
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails to flush at exit
        raise SystemExit(1) from None
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.ENAMETOOLONG:
            raise
        _fail(f"no access to {error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer has it on its own errors, such as for an unknown option
            raise
        _fail(error.format_message())
    raise SystemExit(status if isinstance(status, int) else 0)


def _fail(message: str) -> NoReturn:
    if message:  # it is empty if typer has printed the help instead
        print(f"condenset: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
