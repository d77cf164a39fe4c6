"""The command line: parses, calls the library, prints."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from condenset.cli_data import app as data_app
from condenset.cli_networks import app as networks_app
from condenset.cli_options import (
    AsJson,
    Augment,
    DataDir,
    Device,
    Epochs,
    Nets,
    Network,
    Overwrite,
    OwnSteps,
    Precision,
    ScoreSeed,
    Size,
)
from condenset.cli_paper import paper_command
from condenset.cli_run import compare_command, condense_command, resume_command, run_command
from condenset.cli_shared import given, load, print_records, print_rows, watched
from condenset.errors import UserError
from condenset.version import VERSION

STOPPED = 128 + signal.SIGINT
SETS = (
    "Set files (.safetensors); a run's folder stands for its condensed.safetensors, "
    "another (such as RUN/sets) for all set files in it."
)

app = typer.Typer(
    help="Condense a large labelled image set into a tiny synthetic one that trains networks nearly as well.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")
app.add_typer(networks_app, name="networks")
app.command("paper")(paper_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"condenset {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run")(run_command)
app.command("compare")(compare_command)
app.command("condense")(condense_command)


@app.command("evaluate")
def evaluate_command(
    sets: Annotated[list[Path], typer.Argument(help=SETS)],
    dataset: Annotated[str | None, typer.Option(help="Whose test images (default: the dataset it came from).")] = None,
    network: Network = None,
    nets: Nets = None,
    epochs: Epochs = None,
    augment: Augment = None,
    own_steps: OwnSteps = None,
    seed: ScoreSeed = None,
    device: Device = None,
    precision: Precision = None,
    size: Size = None,
    out: Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")] = None,
    config: Annotated[Path | None, typer.Option(help="A recipe.toml whose protocol to score by.")] = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train fresh networks on sets and test them on real images."""
    from condenset import plans
    from condenset.engine import Place
    from condenset.folders import probe
    from condenset.presets import REPLACED
    from condenset.runs import Run
    from condenset.workflow import evaluate_file, find_sets, write_results

    if out and out.exists() and not overwrite:
        raise UserError(f"{out} exists already: choose another --out, or --overwrite it")
    if out:
        probe(out.parent)
    files = [file for path in sets for file in find_sets(path)]
    run = Run(place=Place.best(device, precision))
    known = plans.from_toml(config).given.get("protocol", {}) if config else {}
    asked = given(network=network, nets=nets, epochs=epochs, augment=augment, own_steps=own_steps)
    if {**known, **asked}.get("own_steps"):
        known = {key: value for key, value in known.items() if key not in REPLACED["own_steps"]}
    fields = {**known, **asked}
    source = given(dataset=dataset, data_dir=data_dir)
    source, loaded, records = source | given(size=size), functools.cache(load), []
    try:
        with watched(run):
            for file in files:
                records.append(evaluate_file(file, run, loaded, fields, source, seed))
                if out:
                    write_results(out, records)
    finally:
        if records:  # also those before a stop or a set that cannot be scored
            print_records(records, as_json)


app.command("resume")(resume_command)


@app.command("show")
def show_command(
    path: Annotated[
        Path, typer.Argument(help="A set file (.safetensors), or a run's folder for its condensed.safetensors.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write the picture (default: beside the set).")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Say what a set file holds and where it came from, and draw its images."""
    from condenset.folders import writable
    from condenset.report.grid import save_grid
    from condenset.workflow import facts, find_set, summary

    small, file = find_set(path)
    picture = out or file.with_suffix(".png")
    told = (facts if as_json else summary)(small) | {"picture": str(picture)}
    if overwrite or not picture.exists():
        try:
            with writable(picture):
                save_grid([small], picture)
        except UserError as error:
            if out:
                raise
            told["picture"] = None if as_json else f"none: {error} (--out takes another place)"
    elif out:
        raise UserError(f"{out} exists already: choose another --out, or --overwrite it")
    elif picture.stat().st_mtime < file.stat().st_mtime:
        told["picture"] = None if as_json else f"{picture} is older than the set: --overwrite draws it again"
    if as_json:
        print(json.dumps(told, indent=1))
        return
    for name, value in told.items():
        print(f"{name:16} {value}")


@app.command("methods")
def methods_command(as_json: AsJson = False) -> None:
    """List the methods and the options of each, with defaults."""
    from condenset.recipes import describe

    print_rows(("method", "what it does", "options"), describe(), as_json)


def main(arguments: list[str] | None = None) -> None:
    """The entry point: a user's mistake is one line and exit code 2, a bug a traceback."""
    signals: list[int] = []
    try:
        with _terminable(signals):
            status = typer.main.get_command(app).main(arguments, prog_name="condenset", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone is no surprise
    except UserError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno != errno.ENAMETOOLONG:
            raise
        _fail(f"no access to {error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own: an unknown option, a wrong type
            _fail(error.format_message())
        if type(error).__name__ != "Abort" and not signals:  # which somebody's code may have caught, and fallen over
            raise
        status = STOPPED
    if status == STOPPED:  # what the parser makes of it, one way or the other
        print("stopped", file=sys.stderr)
        status = 128 + signals[0] if signals else STOPPED
    raise SystemExit(status if isinstance(status, int) else 0)


@contextlib.contextmanager
def _terminable(signals: list[int]) -> Iterator[None]:
    """SIGTERM and Ctrl-C unwind the program, so that nothing half-made stays; loops have a way of their own.

    signals: to note them in.
    """
    if threading.current_thread() is not threading.main_thread():  # where no handler can be set
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    numbers = [each for each in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _fail(message: str) -> NoReturn:
    if message:  # without one the parser has printed the help
        print(f"condenset: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(2)
