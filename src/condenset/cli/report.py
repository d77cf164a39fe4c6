"""The command `condenset report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from condenset.cli.console import print_line
from condenset.cli.options import Overwrite, expand_path
from condenset.cli.startup import import_torch
from condenset.io.metadata import check_run_exists


def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            callback=expand_path,
            help="Directory of a run, an evaluation or an experiment; or several runs on one dataset, for one page.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=expand_path, help="HTML file to write (default: RUN/report.html)."),
    ] = None,
    overwrite: Overwrite = False,
    num_networks: Annotated[
        int,
        typer.Option(
            "--nets",
            metavar="NUMBER",
            help="Networks to train on every snapshot, for the curve of accuracy against iterations (default: 0).",
        ),
    ] = 0,
) -> None:
    """Write the HTML report of a run: one page with its result, images and charts, without network access."""
    for directory in runs:
        check_run_exists(directory)
    import_torch()

    from condenset.pipeline.report.run import write_report

    print_line(str(write_report(runs, out, overwrite=overwrite, num_networks=num_networks)))
