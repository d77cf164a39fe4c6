"""The commands `condenset export` and `condenset import-set`: exchange sets with other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.common import check_overwrite, check_set_exists, drop_unset
from condenset.cli.completion import DATASETS, FORMATS, complete_dataset, complete_from, complete_set
from condenset.cli.console import print_line
from condenset.cli.options import Overwrite, expand_path
from condenset.cli.startup import import_torch
from condenset.errors import UserError, format_command

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet


def export_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="SET",
            callback=expand_path,
            autocompletion=complete_set,
            help="Set file (.safetensors), run with one set, or finished set.",
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", callback=expand_path, help="File or directory to write.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            autocompletion=complete_from(FORMATS),
            help="folder (PNG files by class, with exact values), npz (NumPy), hf (Hugging Face), webdataset, or pt "
            "(PyTorch, as published sets) (default: by the suffix of OUT).",
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a set in a format that other programs read. Partitioned sets are written decoded."""
    import_torch(sets=[path])

    from condenset.data.formats.table import FORMATS as SET_FORMATS
    from condenset.errors import check_choice
    from condenset.pipeline.sets import find_scores

    file, condensed = _load_one_set(path)
    suffixes = {item.suffix: item.name for item in SET_FORMATS.values() if item.suffix}
    name = to or suffixes.get(out.suffix.lower())
    if name is None:
        *others, last = SET_FORMATS
        raise UserError(f"the format is unclear from '{out}': give --to {', '.join(others)} or {last}")
    check_choice("--to", name, SET_FORMATS)
    if name == "hf":
        condensed.to_hf(out, overwrite=overwrite, accuracy=find_scores(condensed, file))
    else:
        getattr(condensed, f"to_{name}")(out, overwrite=overwrite)
    print_line(f"{len(condensed):,} images are in {out} ({SET_FORMATS[name].summary})")


def _load_one_set(path: Path) -> tuple[Path, CondensedSet]:
    """Load the set at a path; a directory must have one set."""
    from condenset.data.condensed_set import CondensedSet
    from condenset.pipeline.sets import find_sets

    files = find_sets(path)
    check_set_exists(files[0])
    if len(files) > 1:
        raise UserError(f"{path} has {len(files)} sets: give one of them, such as {files[0]}")
    return files[0], CondensedSet.load(files[0])


def import_set_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            callback=expand_path,
            help="A .pt, .pth or .npz file, or an exported directory; or a .pt file with images and one with labels.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="SET", callback=expand_path, help="Set file to write (.safetensors).")],
    normalization: Annotated[
        str | None,
        typer.Option(
            "--normalization",
            "--normalisation",
            metavar="NAME",
            autocompletion=complete_from((*DATASETS, "none")),
            help="Dataset whose mean and std the images were normalised with, or none for pixels in 0..1. Files that "
            "condenset exported contain it.",
        ),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Mean per channel, separated by commas, with --std.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Standard deviation per channel, separated by commas.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET",
            autocompletion=complete_dataset,
            help="Dataset that the set was made from. 'condenset evaluate' tests on it by default.",
        ),
    ] = None,
    index: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Which set of a .pt file with several, from 0.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Read a set that another program wrote, and store it as a set file. No code in it is run."""
    import_torch()

    from condenset.data.set_import import import_set

    constants = {"mean": _parse_numbers("--mean", mean), "std": _parse_numbers("--std", std)}
    fields = drop_unset(normalization=normalization, dataset=dataset, index=index, **constants)
    check_overwrite(out, overwrite=overwrite)
    condensed = import_set(*paths, **fields)
    condensed.save(out, overwrite=overwrite)
    print_line(f"{condensed} is in {out}")
    dataset_words = () if "dataset" in condensed.provenance else ("--dataset", "DATASET")
    print_line(f"Score it with: {format_command('evaluate', out, *dataset_words)}")


def _parse_numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """Parse numbers that are separated by commas."""
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"{flag} must be numbers such as 0.49,0.48,0.45, but got {text!r}") from None
