"""Functions that several commands share: parse options, announce a run, show its progress and handle signals."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.cli.console import one_line_warnings, print_line
from condenset.cli.signals import exit_on_signal
from condenset.errors import UserError, check, format_command, format_names
from condenset.io.dataset_names import NO_DATASET

RESUME = "Resume with: "  # before the command that continues a run
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

if TYPE_CHECKING:
    from condenset.data.reading.options import LoadOptions
    from condenset.runs.context import RunContext

MAX_SET_NAMES = 10  # in an error


def drop_unset(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def choose_dataset(dataset: str | None, train: str | None, *, required: bool) -> str | None:
    """Return the dataset, given as DATASET or as `--train`. If it is not required, it may be None."""
    if required and dataset is None and train is None:
        raise UserError(NO_DATASET)
    if dataset is not None and train is not None:
        raise UserError(
            f"DATASET and --train exclude each other, but got {dataset!r} and {train!r}: give one of the two"
        )
    return train if dataset is None else dataset


def describe_hold_out(options: LoadOptions) -> str:
    """Return a line on the images that are held out, or nothing if there are none."""
    from condenset.data.reading.hold_out import format_share

    test, val = options.test_share, options.val_share
    lines = [] if test is None else [f"{format_share(test)} of the images are held out for the test."]
    lines += [] if val is None else [f"{format_share(val)} of the training images are held out for validation."]
    return " ".join(lines)


def parse_methods(values: list[str] | None, all_methods: Iterable[str]) -> tuple[str, ...]:
    """Parse the values of `--method`: names separated by commas, where `all` means all methods."""
    names = [name.strip() for value in values or () for name in value.split(",") if name.strip()]
    check(bool(names) or not values, "--method must name a method ('condenset methods')", ",".join(values or ()))
    expanded = [method for name in names for method in (all_methods if name == "all" else (name,))]
    return tuple(dict.fromkeys(expanded))


def parse_ipcs(values: list[str] | None) -> tuple[int, ...]:
    """Parse the values of `--ipc`: whole numbers separated by commas."""
    numbers = [number.strip() for value in values or () for number in value.split(",")]
    for number in numbers:
        check(re.fullmatch(r"-?[0-9]{1,18}", number) is not None, "--ipc must be whole numbers such as 1,10,50", number)
    return tuple(map(int, numbers))


def parse_networks(values: list[str] | None) -> tuple[str, ...]:
    """Parse the values of `--network`: specs separated by commas. Commas within parentheses belong to a spec."""
    specs = [spec.strip() for value in values or () for spec in re.split(r",(?![^(]*\))", value)]
    check(all(specs), "--network must name a network ('condenset networks')", ",".join(values or ()))
    return tuple(dict.fromkeys(specs))


def check_one_network(network: str | None) -> None:
    """Raise a UserError if `--network` of a command that takes one network names several."""
    if network is not None and len(parse_networks([network])) > 1:
        raise UserError(
            f"--network must name one network here, but got {network!r}: score the finished sets on several with "
            "'condenset evaluate RUN --network A,B'"
        )


def parse_memory_limit(value: str | None) -> int | None:
    """Parse the value of `--memory` to bytes."""
    from condenset.io.bytesize import parse_bytes

    return None if value is None else parse_bytes(value)


def check_overwrite(path: Path, *, overwrite: bool) -> None:
    """Raise a UserError if an output file exists and `--overwrite` is not given."""
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another --out, or use --overwrite")


def check_set_exists(file: Path) -> None:
    """Raise a UserError that names the other sets of the directory if a set file does not exist."""
    if not file.exists():
        names = sorted(path.name for path in file.parent.glob("*.safetensors"))
        others = f"; {file.parent} has {format_names(names, MAX_SET_NAMES)}" if names else ""
        raise UserError(f"no such file: {file}{others}")


def resume_hint(directory: Path, **options: object) -> str:
    """Return the command that continues a run, with the options that are neither None nor False."""
    words: list[object] = [directory]
    for name, value in drop_unset(**options).items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] * bool(value) if isinstance(value, bool) else [flag, value]
    return f"{RESUME}{format_command('resume', *words)}"


def announce(work: str, run: RunContext, directory: Path, notes: Iterable[str] = ()) -> None:
    """Print what begins, notes that are not empty, the device and the directory, a line each."""
    device = f"{run.compute.hardware}, {run.compute.precision}"
    for line in (work, *filter(None, notes), f"Device: {device}. Directory: {directory}"):
        print_line(line, stderr=True)


@contextlib.contextmanager
def in_terminal(run: RunContext, hint: str = "", *, tensorboard: bool = False) -> Iterator[None]:
    """Show the progress of a run, print its warnings on one line and stop it on a signal.

    Args:
        run: The run of the block.
        hint: Printed when the run is stopped: how to continue.
        tensorboard: Write curves for TensorBoard. A resumed run continues those that it has.
    """
    from condenset.runs.status_writer import record_status
    from condenset.runs.tensorboard import record_curves

    with (
        exit_on_signal(run, hint),
        _add_hint_to_errors(hint),
        one_line_warnings(),
        record_status(run),
        record_curves(run, requested=tensorboard),
    ):
        yield


@contextlib.contextmanager
def _add_hint_to_errors(hint: str) -> Iterator[None]:
    """Add how to continue a run to the error about a full disk, and to the traceback of a bug or a fault of the GPU."""
    try:
        yield
    except UserError as error:
        is_full = isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_SPACE
        if not is_full or not hint.startswith(RESUME):
            raise
        raise UserError(f"{error}; free space, then: {hint.removeprefix(RESUME)}") from error
    except Exception as error:
        if hint:
            error.add_note(f"condenset: an error stopped the command. Its progress is stored. {hint}")
        raise
