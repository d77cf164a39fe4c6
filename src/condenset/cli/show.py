"""The command `condenset show`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.common import check_overwrite
from condenset.cli.options import AsJson, Overwrite
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet


def show_command(
    path: Annotated[Path, typer.Argument(help="Set file (.safetensors) or run directory.")],
    out: Annotated[Path | None, typer.Option(help="Image file to write (default: next to the set).")] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Print what a set contains and how it was made, and draw its images."""
    from condenset.pipeline.sets import find_set, set_metadata, set_summary

    condensed, file = find_set(path)
    picture, problem = _draw(condensed, file, out, overwrite=overwrite)
    if as_json:
        print(json.dumps(set_metadata(condensed) | {"picture": None if problem else str(picture)}, indent=1))
        return
    for name, value in (set_summary(condensed) | {"picture": problem or str(picture)}).items():
        print(f"{name:16} {value}")


def _draw(condensed: CondensedSet, file: Path, out: Path | None, *, overwrite: bool) -> tuple[Path, str]:
    """Draw the images of a set unless a picture exists.

    Returns:
        The path of the picture, and why it does not show the set (empty if it does).
    """
    from condenset.io.directories import wrap_os_errors
    from condenset.report.grid import save_grid

    picture = out or file.with_suffix(".png")
    if out:
        check_overwrite(out, overwrite=overwrite)
    if overwrite or not picture.exists():
        try:
            with wrap_os_errors(picture):
                save_grid([condensed], picture)
        except UserError as error:
            if out:
                raise
            return picture, f"none: {error} (choose another path with --out)"
    elif picture.stat().st_mtime < file.stat().st_mtime:
        return picture, f"{picture} is older than the set: draw it again with --overwrite"
    return picture, ""
