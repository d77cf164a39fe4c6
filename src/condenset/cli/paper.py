"""The command `condenset paper`, which repeats the paper's experiments."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli.common import (
    announce,
    describe_hold_out,
    drop_unset,
    in_terminal,
    parse_ipcs,
    parse_memory_limit,
    parse_methods,
    resume_hint,
)
from condenset.cli.completion import EXPERIMENTS, SCALES, complete_dataset, complete_from
from condenset.cli.console import print_described, print_files, print_line, print_preview, print_records, print_table
from condenset.cli.evaluation_options import Epochs, NumNetworks, ProtocolName, WholeEpochs
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import (
    AsJson,
    DataDir,
    Device,
    DryRun,
    ExperimentIpc,
    MemoryLimit,
    Methods,
    Out,
    Overwrite,
    Precision,
    Report,
    Schedule,
    Seed,
    Settings,
    TensorBoard,
)
from condenset.cli.startup import import_torch

if TYPE_CHECKING:
    from condenset.experiments.config import ExperimentConfig
    from condenset.experiments.start import FinishedExperiment
    from condenset.runs.context import RunContext

TINY_WARNING = "The scale tiny only tests that everything runs: its numbers mean nothing."


@expand_groups
def paper_command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT",
            autocompletion=complete_from(EXPERIMENTS),
            help="Name of the experiment (default: list the experiments).",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET",
            autocompletion=complete_dataset,
            help="Dataset name or path (default: the paper's; digits at --scale tiny).",
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_from(SCALES),
            help="tiny (a test whose numbers mean nothing), small, or paper (default: small).",
        ),
    ] = "small",
    methods: Methods = None,
    ipcs: ExperimentIpc = None,
    schedule: Schedule = None,
    settings: Settings = None,
    protocol: ProtocolName = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    num_sets: Annotated[
        int | None,
        typer.Option(
            "--sets", metavar="NUMBER", help="Sets per accuracy, each with its own seed (default: 5 at paper, else 1)."
        ),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    *,
    engine_fields: OptionValues,
    load_fields: OptionValues,
    out: Out = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    report: Report = True,
    tensorboard: TensorBoard = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, on its dataset or on another one."""
    import_torch(dataset=dataset, data_dir=data_dir, out=out, overwrite=overwrite)

    from condenset import experiments
    from condenset.experiments.preview import preview_experiment
    from condenset.experiments.start import start_experiment
    from condenset.runs.tensorboard import check_tensorboard

    if name is None:
        entries = [
            {"name": key, "description": experiment.title} for key, experiment in experiments.EXPERIMENTS.items()
        ]
        rows = [tuple(entry.values()) for entry in entries]
        print_described(("experiment", "description"), rows, entries, as_json)
        return
    arguments = {
        "scale": scale,
        "dataset": dataset,
        "data_dir": data_dir,
        "out": out,
        "overwrite": overwrite,
        "device": device,
        "precision": precision,
        "methods": parse_methods(methods, experiments.get_experiment(name).names),
        "ipcs": parse_ipcs(ipcs),
        "settings": tuple(settings or ()),
        "load_fields": load_fields,
        "engine_fields": engine_fields,
        **drop_unset(seed=seed, memory_limit=parse_memory_limit(memory_limit)),
        **drop_unset(schedule=schedule, protocol=protocol, num_networks=num_networks, epochs=epochs),
        **drop_unset(whole_epochs=whole_epochs, num_sets=num_sets),
    }
    if dry_run:
        print_preview(preview_experiment(name, **arguments), as_json)
    else:
        if tensorboard:
            check_tensorboard()
        options: dict[str, Any] = {"as_json": as_json, "no_report": not report, "tensorboard": tensorboard}
        session = functools.partial(experiment_session, **options)
        print_experiment(start_experiment(name, session=session, report=report, **arguments), as_json)


@contextlib.contextmanager
def experiment_session(
    config: ExperimentConfig,
    run: RunContext,
    *,
    hint: str = "",
    dataset: str | None = None,
    as_json: bool = False,
    no_report: bool = False,
    tensorboard: bool = False,
) -> Iterator[None]:
    """Announce an experiment, show its progress and stop it on a signal.

    Args:
        config, run: The experiment.
        hint: The command that continues the experiment. Empty: `resume`, with `--json` if this is given.
        dataset: The path of the dataset now, if it has moved.
        as_json: The experiment prints JSON.
        no_report: The experiment writes no report.
        tensorboard: Write curves for TensorBoard.
    """
    assert run.directory is not None
    work = f"Running the experiment {config.experiment} with {dataset or config.dataset} at the scale {config.scale}"
    announce(work, run, run.directory, [describe_hold_out(config.load_options)])
    hint = hint or resume_hint(run.directory, json=as_json, no_report=no_report)
    with in_terminal(run, hint, tensorboard=tensorboard):
        yield


def print_experiment(finished: FinishedExperiment, as_json: bool) -> None:
    """Print the table of an experiment and the paths of its files."""
    from condenset.io.metadata import read_json

    directory = finished.directory
    if as_json:
        print_records(read_json(directory / "results.json", "a list of results"), as_json)
        return
    print_table(finished.result.table.columns, finished.result.table.rows)
    print_line()
    if finished.config.scale == "tiny":
        print_line(TINY_WARNING)
    print_files(directory, figure="figure.png", table="table.md", results="results.json", report="report.html")
