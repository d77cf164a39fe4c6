"""The commands `condenset data …`: list, download, check and import datasets."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from condenset.cli.console import print_table
from condenset.cli.options import AsJson, DataDir, Overwrite, Size

DatasetName = Annotated[str, typer.Argument(help="Dataset name ('condenset data list').")]
DatasetSource = Annotated[str, typer.Argument(help="Dataset name or path: a folder or an .npz file.")]

app = typer.Typer(help="List, download, check and import datasets.", no_args_is_help=True)


@app.command("list")
def list_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets and whether they are available on this machine."""
    from condenset import data

    entries = data.list_datasets(data_dir)
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1, default=str))
        return
    rows = []
    for entry in entries:
        num_images = f"{entry.num_train} + {entry.num_test}" if entry.num_train else ""
        shape = "x".join(map(str, entry.shape))
        rows.append((entry.name, entry.title, num_images, str(entry.num_classes or ""), shape, entry.state))
    print_table(("dataset", "description", "train + test", "classes", "shape", "state"), rows)


@app.command("get")
def get_command(name: DatasetName, data_dir: DataDir = None) -> None:
    """Download a dataset from its official source. An interrupted download is resumed."""
    from condenset import data
    from condenset.data.sources import require_registered_name

    directory = data.download_dataset(name, data_dir)
    if data.DATASETS[require_registered_name(name)].is_bundled:
        print(f"{name} is part of scikit-learn: no download is needed")
    else:
        print(f"{name} is in {directory}")


@app.command("check")
def check_command(name: DatasetSource, data_dir: DataDir = None, size: Size = None, as_json: AsJson = False) -> None:
    """Read a whole dataset and print a summary."""
    from condenset import data

    report = data.check_dataset(name, data_dir=data_dir, size=size)
    print(json.dumps(dataclasses.asdict(report), indent=1) if as_json else report)


@app.command("import")
def import_command(
    source: DatasetSource,
    name: Annotated[str, typer.Argument(help="Name of the imported dataset.")],
    data_dir: DataDir = None,
    size: Size = None,
    allow_hflip: Annotated[
        bool, typer.Option("--flip/--no-flip", help="Allow horizontal flips. Disable for text and digits.")
    ] = True,
    overwrite: Overwrite = False,
) -> None:
    """Convert a dataset to a memory-mapped format that opens at once, whatever its size."""
    from condenset import data

    directory = data.import_dataset(
        source,
        name,
        data_dir=data_dir,
        size=size,
        overwrite=overwrite,
        allow_hflip=None if allow_hflip else False,  # None: as the source has it
    )
    print(f"{name} is in {directory}")
