"""The command line `condenset`: its commands and how errors are reported."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

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

app = typer.Typer(
    help="Condense a large labelled image dataset into a small synthetic one that trains networks nearly as well.",
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
    command = typer.main.get_command(app)
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # Not command.main(), which would exit on a KeyboardInterrupt before exit_on_signal sees it.
        with exit_on_signal(), command.make_context("condenset", words) as context:
            command.invoke(context)
        sys.stdout.flush()  # raises BrokenPipeError here instead of at exit
    except typer.Exit as error:  # of --help and --version
        raise SystemExit(error.exit_code) from None
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
        if not hasattr(error, "format_message"):  # errors of typer have it, such as for an unknown option
            raise
        _fail(error.format_message())
    raise SystemExit(0)


def _fail(message: str) -> NoReturn:
    if message:  # it is empty if typer has printed the help instead
        print(f"condenset: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
