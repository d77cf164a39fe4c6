"""The command `condenset show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.common import check_overwrite, check_set_exists
from condenset.cli.completion import complete_set
from condenset.cli.console import print_json, print_line, print_table
from condenset.cli.options import AsJson, Overwrite, expand_path
from condenset.cli.startup import import_torch
from condenset.errors import UserError, check

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet


def show_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="SET",
            callback=expand_path,
            autocompletion=complete_set,
            help="Set file (.safetensors), finished set (cifar10-dm-10), run directory or directory of set files.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=expand_path,
            help="PNG file to write (default: next to the set; for a finished set, in the working directory; grid.png "
            "in a directory of several sets).",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Print what sets contain and how they were made, and draw their images."""
    if out is not None:
        check(out.suffix.lower() == ".png", "--out must name a .png file", str(out))
    import_torch(sets=[path])

    from condenset.data.condensed_set import CondensedSet
    from condenset.pipeline.sets import find_sets, set_metadata, set_summary

    files = find_sets(path)
    check_set_exists(files[0])
    sets = [CondensedSet.load(file) for file in files]
    picture, problem = _draw(
        sets, files, out or _default_picture(path, files), required=out is not None, overwrite=overwrite
    )
    if as_json:
        shown = {"picture": None if problem else str(picture)}
        records = [{"file": str(file), **set_metadata(item), **shown} for file, item in zip(files, sets, strict=True)]
        print_json(records[0] if len(records) == 1 else records)
        return
    if len(sets) == 1:
        for name, value in (set_summary(sets[0]) | {"picture": problem or str(picture)}).items():
            print_line(f"{name:16} {value}")
        return
    _print_sets(sets, files)
    print_line()
    print_line(f"sets     {files[0].parent}")
    print_line(f"picture  {problem or picture}")


def _default_picture(path: Path, files: Sequence[Path]) -> Path:
    """Return the picture of one set, or of all sets of a directory. That of a finished set is in this directory."""
    if not path.exists():
        return Path(f"{path.name}.png")
    return files[0].with_suffix(".png") if len(files) == 1 else path / "grid.png"


def _print_sets(sets: Sequence[CondensedSet], files: Sequence[Path]) -> None:
    """Print a table with one row per set. All files are in the same directory."""
    from condenset.pipeline.sets import set_summary

    names = ("dataset", "method", "images", "labels", "pixels")
    rows = []
    for file, condensed in zip(files, sets, strict=True):
        low, high = condensed.images.min(), condensed.images.max()
        summary = set_summary(condensed) | {"pixels": f"{low:.3g} to {high:.3g}"}  # short: a row must fit a line
        summary["images"] = summary["images"].removesuffix(f", {condensed.num_classes} classes")
        rows.append((file.stem, *(str(summary.get(name, "-")) for name in names)))
    print_table(("set", *names), rows)


def _draw(
    sets: Sequence[CondensedSet], files: Sequence[Path], picture: Path, *, required: bool, overwrite: bool
) -> tuple[Path, str]:
    """Draw the images of sets unless a picture exists.

    Args:
        sets: The sets.
        files: Their files.
        picture: The image file.
        required: Raise an error if the picture exists or cannot be drawn.
        overwrite: Replace an existing picture.

    Returns:
        The path of the picture, and why it does not show the sets (empty if it does).
    """
    from condenset.io.directories import wrap_os_errors
    from condenset.report.grid import save_grid

    if required:
        check_overwrite(picture, overwrite=overwrite)
    if overwrite or not picture.exists():
        try:
            if len({(condensed.class_names, condensed.images.shape[1:]) for condensed in sets}) > 1:
                raise UserError("the sets have different classes or image shapes; show one of them")
            with wrap_os_errors(picture):
                save_grid(sets, picture)
        except UserError as error:
            if required:
                raise
            return picture, f"none: {error} (choose another path with --out)"
    elif picture.stat().st_mtime < max(file.stat().st_mtime for file in files):
        return picture, f"{picture} is older than the set: draw it again with --overwrite"
    return picture, ""
