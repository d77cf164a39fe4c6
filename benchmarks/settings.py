"""Compare settings of a method on training images that are held out, to choose them without test images.

    python benchmarks/settings.py digits --ipc 10 --try lr=1 --try "lr=4 iterations=100"
    python benchmarks/settings.py cifar100 --method dmplus --ipc 10 --set iterations=2000 --set pool=experts \
        --try calibration=1 --try calibration=3 --protocol modern --nets 3 --device cuda --out settings.json

A row condenses one part of the training images with one change of the settings, and scores the set on the other part.
With --out, a second call continues after the last row. Networks of a pool must be trained on the same part: use a new
directory, or the pool of an earlier call with the same seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import condenset as cs
from condenset.cli.console import print_table
from condenset.data.class_selection import select_classes
from condenset.errors import check_int
from condenset.pipeline.request import parse_settings
from condenset.pipeline.results import condense_cost, format_records

COLUMNS = ("change", "seconds", "held-out accuracy %")


def score_settings(
    splits: tuple[cs.ImageData, cs.ImageData],
    method: str,
    ipc: int,
    settings: str,
    evaluation: dict[str, Any],
    *,
    seed: int,
    device: str | None,
) -> dict[str, Any]:
    """Return the record of one condensed set.

    Args:
        splits: The images to condense, and the images to score the set on.
        settings: Fields of the recipe, such as "lr=4 iterations=100".
        evaluation: Protocol and its options, for `cs.evaluate`.
    """
    train, held_out = splits
    fields, _ = parse_settings(settings.split())
    condensed = cs.condense(train, method, ipc=ipc, seed=seed, device=device, verbose=False, **fields)
    scores = cs.evaluate(condensed, held_out, seed=seed, device=device, verbose=False, **evaluation)
    return {
        "method": method,
        "ipc": ipc,
        "settings": settings,
        "seed": seed,
        "protocol": evaluation["protocol"],
        "num_networks": len(scores.accuracies),
        "accuracy_mean": scores.mean,
        "accuracy_std": scores.std,
        **condense_cost(condensed.provenance),
    }


def split_images(
    dataset: str, data_dir: Path | None, num_classes: int | None, held_out: float, seed: int
) -> tuple[cs.ImageData, cs.ImageData]:
    """Return the training images to condense, and those to score on, of all classes or of the first ones."""
    train = cs.load(dataset, data_dir=data_dir, verbose=False).train
    if num_classes is not None:
        check_int("--classes", num_classes, 1, train.num_classes)
    return cs.train_val_split(select_classes(train, train.class_names[:num_classes]), held_out, seed=seed)


def read_records(path: Path | None) -> list[dict[str, Any]]:
    """Return the records of an earlier call."""
    return json.loads(path.read_text()) if path is not None and path.exists() else []


def main(
    dataset: str,
    changes: Annotated[list[str], typer.Option("--try", help="Settings of a row: FIELD=VALUE, separated by spaces.")],
    method: str = "dm",
    ipc: int = 10,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of all rows: FIELD=VALUE.")] = None,
    protocol: str = "paper",
    nets: Annotated[int, typer.Option(help="Networks per row.")] = 3,
    epochs: Annotated[int | None, typer.Option(help="Training epochs (default: see the protocol).")] = None,
    classes: Annotated[int | None, typer.Option(help="Use this number of classes, the first ones.")] = None,
    held_out: Annotated[float, typer.Option(help="Share of the training images to hold out.")] = 0.1,
    seed: int = 0,
    device: str | None = None,
    data_dir: Path | None = None,
    out: Annotated[Path | None, typer.Option(help="JSON file of the rows.")] = None,
) -> None:
    splits = split_images(dataset, data_dir, classes, held_out, seed)
    evaluation = {"protocol": protocol, "num_networks": nets, **({} if epochs is None else {"epochs": epochs})}
    records = read_records(out)
    for change in changes[len(records) :]:
        text = " ".join([*(settings or []), change])
        record = score_settings(splits, method, ipc, text, evaluation, seed=seed, device=device)
        records.append({"dataset": dataset, "change": change, "classes": splits[0].num_classes, **record})
        print(f"{text}: {100 * record['accuracy_mean']:.1f} ± {100 * record['accuracy_std']:.1f}", flush=True)
        if out is not None:
            out.write_text(format_records(records) + "\n")
    rows = [
        (
            record["change"],
            f"{record['condense_seconds']:.1f}",
            f"{100 * record['accuracy_mean']:.1f} ± {100 * record['accuracy_std']:.1f}",
        )
        for record in records
    ]
    print_table(COLUMNS, rows)


if __name__ == "__main__":
    typer.run(main)
