"""The commands `condenset data …`: list, download, check and import datasets."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from condenset.cli.completion import DATASETS, complete_dataset, complete_from
from condenset.cli.console import print_json, print_line, print_lines, print_table
from condenset.cli.help import HelpCommand, HelpGroup
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import AsJson, DataDir, Overwrite
from condenset.cli.signals import exit_on_signal
from condenset.cli.startup import import_torch

DatasetName = Annotated[
    str,
    typer.Argument(
        metavar="DATASET", autocompletion=complete_from(DATASETS), help="Dataset name ('condenset data list')."
    ),
]
DatasetSource = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        autocompletion=complete_dataset,
        help="Dataset name or path: a folder or an .npz file.",
    ),
]

app = typer.Typer(cls=HelpGroup, help="List, download, check and import datasets.", no_args_is_help=True)


@app.command("list", cls=HelpCommand)
def list_command(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets and whether they are available on this machine."""
    import_torch()

    from condenset import data

    entries = data.list_datasets(data_dir)
    if as_json:
        print_json([dataclasses.asdict(entry) for entry in entries])
        return
    rows = []
    for entry in entries:
        num_images = f"{entry.num_train} + {entry.num_test}" if entry.num_train else ""
        shape = "x".join(map(str, entry.shape))
        rows.append((entry.name, entry.title, num_images, str(entry.num_classes or ""), shape, entry.state))
    print_table(("dataset", "description", "train + test", "classes", "shape", "state"), rows)


@app.command("get", cls=HelpCommand)
def get_command(name: DatasetName, data_dir: DataDir = None) -> None:
    """Download a dataset from its official source. An interrupted download is resumed."""
    import_torch()

    from condenset import data
    from condenset.data.datasets.sources import require_registered_name

    directory = data.download_dataset(name, data_dir)
    if data.DATASETS[require_registered_name(name)].is_bundled:
        print_line(f"{name} is part of scikit-learn: no download is needed")
    else:
        print_line(f"{name} is in {directory}")


@app.command("check", cls=HelpCommand)
@expand_groups
def check_command(
    name: DatasetSource,
    data_dir: DataDir = None,
    *,
    load_fields: OptionValues,
    as_json: AsJson = False,
) -> None:
    """Read a whole dataset and print a report: classes, sizes, duplicates, ignored and unreadable files.

    The exit code is 2 if an image file is unreadable, unless --skip-bad is given.
    """
    import_torch(dataset=name, data_dir=data_dir)

    from condenset import data
    from condenset.data.folders.image_files import unreadable_error

    report = data.check_dataset(name, data_dir=data_dir, **load_fields)
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        print_lines(str(report))
    if report.unreadable and not load_fields.get("skip_bad"):
        raise unreadable_error(report.unreadable)


@app.command("import", cls=HelpCommand)
@expand_groups
def import_command(
    source: DatasetSource,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the imported dataset.")],
    data_dir: DataDir = None,
    *,
    load_fields: OptionValues,
    allow_hflip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Allow horizontal flips. Disable for text and digits (default: as in the source, else --flip).",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert a dataset to a memory-mapped format that opens at once, whatever its size.

    An import of image files that was stopped or killed continues if the command is repeated.
    """
    import_torch(dataset=source, data_dir=data_dir)

    from condenset import data
    from condenset.data.image_data import describe_images, one_line
    from condenset.data.imports.import_journal import can_continue_import
    from condenset.data.imports.memmap import memmap_directory

    def describe_rest() -> str:
        target = memmap_directory(data.data_directory(data_dir), name)
        return "Repeat the command to continue." if can_continue_import(target) else ""

    with exit_on_signal(hint=describe_rest):
        directory = data.import_dataset(
            source,
            name,
            data_dir=data_dir,
            overwrite=overwrite,
            allow_hflip=allow_hflip,
            **load_fields,
        )
    print_line(f"{name} is in {directory}")
    splits = data.load(directory)
    train, num_test = splits.train, f"{len(splits.test):,}" if splits.test else "no"
    counts = f"{len(train):,} training and {num_test} test images of {describe_images(train)}"
    print_line(f"{counts}, from {one_line(train.source)}")
    if splits.test is None:
        hint = "import it again with --overwrite and --test PATH or --test-share 0.2"
        print_line(f"{name} has no test images, which run, compare and paper need: {hint}")
