"""The command `condenset evaluate`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli.common import check_overwrite, drop_unset, in_terminal
from condenset.cli.console import print_records
from condenset.cli.options import (
    AsJson,
    Augment,
    DataDir,
    Device,
    EvaluationEpochs,
    EvaluationNetwork,
    EvaluationSeed,
    LearnedSteps,
    NumNetworks,
    Overwrite,
    Precision,
    Size,
)

if TYPE_CHECKING:
    from condenset.data.image_data import Splits

SetPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="SETS...",
        help="Set files (.safetensors), run directories (their condensed.safetensors), or directories of set files.",
    ),
]


def evaluate_command(
    sets: SetPaths,
    dataset: Annotated[
        str | None, typer.Option(help="Dataset with the test images (default: the one the set was made from).")
    ] = None,
    network: EvaluationNetwork = None,
    num_networks: NumNetworks = None,
    epochs: EvaluationEpochs = None,
    augment: Augment = None,
    learned_steps: LearnedSteps = None,
    seed: EvaluationSeed = None,
    device: Device = None,
    precision: Precision = None,
    size: Size = None,
    out: Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")] = None,
    config: Annotated[Path | None, typer.Option(help="A recipe.toml that sets the evaluation protocol.")] = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train new networks on condensed sets and test them on real images."""
    from condenset import data
    from condenset.engine import ComputeDevice
    from condenset.io.directories import ensure_writable
    from condenset.pipeline.results import write_results
    from condenset.pipeline.sets import evaluate_file, find_sets
    from condenset.runs.context import RunContext

    if out:
        check_overwrite(out, overwrite=overwrite)
        ensure_writable(out.parent)
    files = [file for path in sets for file in find_sets(path)]
    run = RunContext(compute=ComputeDevice.select(device, precision))
    options = {"network": network, "num_networks": num_networks, "epochs": epochs, "augment": augment}
    fields = _protocol_fields(config, drop_unset(**options, learned_steps=learned_steps))
    load_options = drop_unset(dataset=dataset, data_dir=data_dir, size=size)

    @functools.cache  # sets of one run share their dataset
    def load(dataset: str, data_dir: Path | None = None, size: int | None = None) -> Splits:
        return data.load(dataset, data_dir=data_dir, size=size)

    records: list[dict[str, Any]] = []
    try:
        with in_terminal(run):
            for file in files:
                records.append(evaluate_file(file, run, load, fields, load_options, seed))
                if out:
                    write_results(out, records)
    finally:
        if records:  # also after a signal or a set that cannot be evaluated
            print_records(records, as_json)


def _protocol_fields(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the protocol fields of a recipe.toml, replaced by those given as options."""
    from condenset.pipeline.config import read_plan
    from condenset.training.protocol import OVERRIDDEN_FIELDS

    fields = dict(read_plan(config).explicit.get("protocol", {})) if config else {}
    if (fields | options).get("learned_steps"):
        fields = {name: value for name, value in fields.items() if name not in OVERRIDDEN_FIELDS["learned_steps"]}
    return fields | options
