"""The commands about datasets: what is known, fetching, checking, importing."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from condenset.cli_options import AsJson, DataDir, Overwrite, Size

app = typer.Typer(help="Datasets: what is known, fetching, checking, importing.", no_args_is_help=True)


@app.command("list")
def data_list(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the known and the imported datasets, and which of them are here."""
    from condenset import data
    from condenset.console import print_table

    entries, rows = data.describe(data_dir), []
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1, default=str))
        return
    for entry in entries:
        counts = f"{entry.num_train} + {entry.num_test}" if entry.num_train else ""
        shape = "x".join(map(str, entry.shape))
        rows.append((entry.name, entry.title, counts, str(entry.num_classes or ""), shape, entry.state))
    print_table(("dataset", "what it is", "train + test", "classes", "images", "state"), rows)


@app.command("get")
def data_get(name: str, data_dir: DataDir = None) -> None:
    """Download a dataset from its official address, checked; a broken download goes on where it stopped."""
    from condenset import data
    from condenset.data.sources import require_source

    place = data.get(name, data_dir)
    bundled = data.SOURCES[require_source(name)].bundled
    print(f"{name} comes with scikit-learn: there is nothing to get" if bundled else f"{name} is in {place}")


@app.command("check")
def data_check(name: str, data_dir: DataDir = None, size: Size = None, as_json: AsJson = False) -> None:
    """Read a dataset whole and say what is in it."""
    from condenset import data

    report = data.check_files(name, data_dir=data_dir, size=size)
    print(json.dumps(dataclasses.asdict(report), indent=1) if as_json else report)


@app.command("import")
def data_import(
    source: Annotated[str, typer.Argument(help="A known name or a path: a folder or an .npz file.")],
    name: Annotated[str, typer.Argument(help="What to call it from now on.")],
    data_dir: DataDir = None,
    size: Size = None,
    flip: Annotated[bool, typer.Option(help="Whether a mirrored image keeps its label: not for letters.")] = True,
    overwrite: Overwrite = False,
) -> None:
    """Convert a dataset to a form that opens at once, however large."""
    from condenset import data

    can_flip = None if flip else False
    place = data.import_data(source, name, data_dir=data_dir, size=size, overwrite=overwrite, can_flip=can_flip)
    print(f"{name} is in {place}")
