"""The command `condenset paper`, which repeats the paper's experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from condenset.cli.common import (
    announce,
    drop_unset,
    in_terminal,
    parse_ipcs,
    parse_memory_limit,
    parse_methods,
    resume_hint,
)
from condenset.cli.console import print_entries, print_files, print_table
from condenset.cli.options import (
    AsJson,
    DataDir,
    Device,
    Epochs,
    ExperimentIpc,
    MemoryLimit,
    Methods,
    NumNetworks,
    Out,
    Overwrite,
    Precision,
    Seed,
    Settings,
    Size,
    WholeEpochs,
)

if TYPE_CHECKING:
    from condenset.experiments.config import ExperimentConfig
    from condenset.experiments.start import FinishedExperiment
    from condenset.runs.context import RunContext

TINY_WARNING = "The scale tiny only tests that everything runs: its numbers mean nothing."


def paper_command(
    name: Annotated[str | None, typer.Argument(help="Experiment (default: list the experiments).")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Dataset name or path (default: the paper's; digits at --scale tiny).")
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny (a test whose numbers mean nothing), small, or paper.")] = "small",
    methods: Methods = None,
    ipcs: ExperimentIpc = None,
    settings: Settings = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    num_sets: Annotated[
        int | None,
        typer.Option("--sets", help="Sets per accuracy, each with its own seed (default: 5 at paper, else 1)."),
    ] = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    size: Size = None,
    out: Out = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Repeat a table or figure of the paper, on its dataset or on another one."""
    from condenset.experiments import EXPERIMENTS, get_experiment
    from condenset.experiments.start import start_experiment

    if name is None:
        rows = [(key, experiment.title) for key, experiment in EXPERIMENTS.items()]
        print_entries(("experiment", "description"), ("name", "description"), rows, as_json)
        return
    finished = start_experiment(
        name,
        scale=scale,
        dataset=dataset,
        data_dir=data_dir,
        out=out,
        overwrite=overwrite,
        device=device,
        precision=precision,
        session=experiment_session,
        methods=parse_methods(methods, get_experiment(name).names),
        ipcs=parse_ipcs(ipcs),
        settings=tuple(settings or ()),
        **drop_unset(seed=seed, memory_limit=parse_memory_limit(memory_limit), size=size),
        **drop_unset(num_networks=num_networks, epochs=epochs, whole_epochs=whole_epochs, num_sets=num_sets),
    )
    print_experiment(finished, as_json)


@contextlib.contextmanager
def experiment_session(config: ExperimentConfig, run: RunContext) -> Iterator[None]:
    """Announce an experiment, show its progress and stop it on a signal."""
    assert run.directory is not None
    work = f"Running the experiment {config.experiment} with {config.dataset} at the scale {config.scale}"
    announce(work, run, run.directory)
    with in_terminal(run, resume_hint(run.directory)):
        yield


def print_experiment(finished: FinishedExperiment, as_json: bool) -> None:
    """Print the table of an experiment and the paths of its files."""
    directory = finished.directory
    if as_json:
        print((directory / "results.json").read_text(encoding="utf-8"), end="")
        return
    print_table(finished.result.table.columns, finished.result.table.rows)
    print()
    if finished.config.scale == "tiny":
        print(TINY_WARNING)
    print_files(directory, figure="figure.png", table="table.md", results="results.json")
