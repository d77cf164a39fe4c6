"""The commands `condenset run`, `compare`, `condense` and `resume`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from condenset.cli.console import print_files, print_records
from condenset.cli.options import (
    AllowFewer,
    AsJson,
    Augment,
    Config,
    DataDir,
    Dataset,
    Device,
    Epochs,
    ImagesPerClass,
    Init,
    Iterations,
    LearningRate,
    MemoryLimit,
    Methods,
    Network,
    NumNetworks,
    Out,
    Overwrite,
    Precision,
    ResumeDataDir,
    ResumeDevice,
    ResumeMemoryLimit,
    Seed,
    Settings,
    Size,
    Whole,
    WholeEpochs,
)
from condenset.cli.paper import experiment_session, print_experiment
from condenset.errors import UserError

if TYPE_CHECKING:
    from condenset.pipeline.plan import Plan
    from condenset.pipeline.request import RunRequest
    from condenset.pipeline.run import RunResult
    from condenset.runs.context import RunContext

DEFAULT_METHODS = {"run": ["random", "dm"], "compare": ["all"]}  # by command
COMPARE_HELP = "Condense a dataset with all methods, score the sets and draw accuracy against time."
OUTPUT_FILES = {"picture": "grid.png", "chart": "chart.png", "set": "condensed.safetensors", "results": "results.json"}


def run_command(
    context: typer.Context,
    dataset: Dataset = None,
    methods: Methods = None,
    ipcs: ImagesPerClass = None,
    network: Network = None,
    iterations: Iterations = None,
    lr: LearningRate = None,
    init: Init = None,
    augment: Augment = None,
    settings: Settings = None,
    allow_fewer: AllowFewer = None,
    whole: Whole = None,
    num_networks: NumNetworks = None,
    epochs: Epochs = None,
    whole_epochs: WholeEpochs = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    size: Size = None,
    out: Out = None,
    config: Config = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Condense a dataset, score the sets and draw them (default methods: random and dm)."""
    from condenset.pipeline.run import start_run

    shared_fields = drop_unset(network=network, augment=augment)  # of recipes and of the protocol
    request = _make_request(
        methods or ([] if config else DEFAULT_METHODS[str(context.info_name)]),
        ipcs,
        shared_fields | drop_unset(iterations=iterations, lr=lr, init=init, allow_fewer=allow_fewer),
        settings,
        protocol_fields=shared_fields | drop_unset(num_networks=num_networks, epochs=epochs),
        whole=whole,
        whole_epochs=whole_epochs,
    )
    options = drop_unset(seed=seed, device=device, precision=precision, size=size, data_dir=data_dir)
    options |= drop_unset(memory_limit=parse_memory_limit(memory_limit))
    result = start_run(
        request, dataset=dataset, config=config, out=out, overwrite=overwrite, session=_run_session, **options
    )
    _print_result(result, as_json)


def condense_command(
    dataset: Dataset = None,
    methods: Methods = None,
    ipcs: ImagesPerClass = None,
    network: Network = None,
    iterations: Iterations = None,
    lr: LearningRate = None,
    init: Init = None,
    augment: Augment = None,
    settings: Settings = None,
    allow_fewer: AllowFewer = None,
    seed: Seed = None,
    device: Device = None,
    precision: Precision = None,
    memory_limit: MemoryLimit = None,
    size: Size = None,
    out: Out = None,
    config: Config = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Condense a dataset without scoring the set (default method: dm)."""
    from condenset.pipeline.run import start_run

    fields = drop_unset(iterations=iterations, lr=lr, init=init, allow_fewer=allow_fewer)
    fields |= drop_unset(network=network, augment=augment)
    request = _make_request(methods or ([] if config else ["dm"]), ipcs, fields, settings, evaluate=False)
    options = drop_unset(seed=seed, device=device, precision=precision, size=size, data_dir=data_dir)
    options |= drop_unset(memory_limit=parse_memory_limit(memory_limit))
    result = start_run(
        request, dataset=dataset, config=config, out=out, overwrite=overwrite, session=_run_session, **options
    )
    _print_result(result, as_json)


def resume_command(
    directory: Annotated[Path, typer.Argument(help="Directory of a run or an experiment that was stopped.")],
    device: ResumeDevice = None,
    memory_limit: ResumeMemoryLimit = None,
    dataset: Annotated[str | None, typer.Option(help="New path of the dataset, if it has moved.")] = None,
    data_dir: ResumeDataDir = None,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or killed. The result is the same as without the stop."""
    from condenset.experiments.start import resume_experiment
    from condenset.pipeline.run import resume_run

    changes = drop_unset(device=device, memory_limit=parse_memory_limit(memory_limit), data_dir=data_dir)
    if (directory / "experiment.toml").is_file():
        finished = resume_experiment(directory, moved_to=dataset, session=experiment_session, **changes)
        print_experiment(finished, as_json)
    else:
        _print_result(resume_run(directory, moved_to=dataset, session=_run_session, **changes), as_json)


def _make_request(
    methods: list[str], ipcs: list[str] | None, fields: dict[str, Any], settings: list[str] | None, **options: Any
) -> RunRequest:
    """Build the request of a run from its options.

    Args:
        methods: Values of `--method`.
        ipcs: Values of `--ipc`.
        fields: Recipe fields that have an option, for all methods.
        settings: Values of `--set`.
        options: Other fields of `RunRequest`.
    """
    from condenset.methods import METHODS
    from condenset.pipeline.request import RunRequest, parse_settings

    recipe_fields, method_fields = parse_settings(settings or ())
    for name in fields.keys() & recipe_fields.keys():
        raise UserError(f"{name} is given twice, by --{name.replace('_', '-')} and by --set: give one of the two")
    return RunRequest(
        methods=parse_methods(methods, METHODS),
        ipcs=parse_ipcs(ipcs),
        recipe_fields=fields | recipe_fields,
        method_fields=method_fields,
        **options,
    )


@contextlib.contextmanager
def _run_session(plan: Plan, run: RunContext) -> Iterator[None]:
    """Announce a run, show its progress and stop it on a signal."""
    assert run.directory is not None
    methods = ", ".join(dict.fromkeys(job.method for job in plan.condense_jobs))
    ipcs = list(dict.fromkeys(job.ipc for job in plan.condense_jobs))
    size = "1 image" if ipcs == [1] else f"{', '.join(map(str, ipcs))} images"
    announce(f"Condensing {plan.dataset} to {size} per class with {methods}", run, run.directory)
    with in_terminal(run, resume_hint(run.directory)):
        yield


def _print_result(result: RunResult, as_json: bool) -> None:
    print_records(result.records, as_json)
    if not as_json:
        print()
        print_files(result.directory, **OUTPUT_FILES)
