"""The command `condenset doctor`."""

from __future__ import annotations

import dataclasses
import sys

import typer

from condenset.cli.console import print_json, print_line, print_table
from condenset.cli.options import AsJson, DataDir


def doctor_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Check the installation: versions, devices, optional parts, data directory and disk.

    The exit code is 1 if a required part is missing. The last column has the command that installs it.
    """
    from condenset.cli.installation import MISSING, run_checks

    if sys.stderr.isatty():
        print_line("Checking …", stderr=True)
    checks = run_checks(data_dir)
    if as_json:
        print_json([dataclasses.asdict(check) for check in checks])
    else:
        print_table(("item", "state", "value", "remedy"), [dataclasses.astuple(check) for check in checks])
    if any(check.state == MISSING for check in checks):
        raise typer.Exit(1)
