"""The command `condenset evaluate`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli.common import announce, drop_unset, in_terminal, parse_networks, resume_hint
from condenset.cli.completion import complete_dataset, complete_set
from condenset.cli.console import print_evaluation, print_files, print_line
from condenset.cli.evaluation_options import (
    EvaluationEpochs,
    EvaluationNetworks,
    EvaluationNumNetworks,
    EvaluationOut,
    EvaluationProtocolName,
    EvaluationSeed,
    LearnedSteps,
    PerClass,
)
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import AsJson, Augment, DataDir, Device, Overwrite, Precision, expand_path
from condenset.cli.startup import import_torch

if TYPE_CHECKING:
    from condenset.pipeline.evaluation.config import EvaluationConfig
    from condenset.pipeline.results import RunResult
    from condenset.runs.context import RunContext

SetPaths = Annotated[
    list[Path],
    typer.Argument(
        callback=expand_path,
        metavar="SETS",
        autocompletion=complete_set,
        help="Set files (.safetensors), finished sets (cifar10-dm-10), run directories (all sets of the run), or "
        "directories of set files.",
    ),
]


@expand_groups
def evaluate_command(
    sets: SetPaths,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="DATASET",
            autocompletion=complete_dataset,
            help="Dataset name or path to test on: its test split, else all of its images (default: the test images of "
            "the dataset that the set was made from).",
        ),
    ] = None,
    network: EvaluationNetworks = None,
    protocol: EvaluationProtocolName = None,
    num_networks: EvaluationNumNetworks = None,
    epochs: EvaluationEpochs = None,
    augment: Augment = None,
    learned_steps: LearnedSteps = None,
    seed: EvaluationSeed = None,
    device: Device = None,
    precision: Precision = None,
    *,
    engine_fields: OptionValues,
    score_load_fields: OptionValues,
    out: EvaluationOut = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=expand_path,
            help="A recipe.toml that sets the evaluation protocol (default: that of the run of the sets).",
        ),
    ] = None,
    data_dir: DataDir = None,
    overwrite: Overwrite = False,
    per_class: PerClass = False,
    as_json: AsJson = False,
) -> None:
    """Train new networks on condensed sets and test them on real images."""
    import_torch(sets=sets, dataset=dataset, data_dir=data_dir, config=config, out=out, overwrite=overwrite)

    from condenset.pipeline.evaluation.plan import EvaluationRequest
    from condenset.pipeline.evaluation.run import start_evaluation

    training = {"num_networks": num_networks, "epochs": epochs, "augment": augment, "learned_steps": learned_steps}
    request = EvaluationRequest(
        paths=tuple(sets),
        networks=parse_networks(network),
        protocol_fields=drop_unset(protocol=protocol, **training),
        config=config,
        dataset=dataset,
        data_dir=data_dir,
        load_fields=score_load_fields,
        seed=seed,
    )
    session = functools.partial(_session, per_class=per_class, as_json=as_json)
    compute: dict[str, Any] = {"device": device, "precision": precision, "engine_fields": engine_fields}
    result = start_evaluation(request, out=out, overwrite=overwrite, session=session, **compute)
    _print_result(result, per_class, as_json)


def resume_and_print(directory: Path, *, per_class: bool, as_json: bool, hint: str, **changes: Any) -> None:
    """Continue an evaluation and print its result.

    Args:
        directory: The directory of the evaluation.
        per_class: Print the accuracy of each class.
        as_json: Print JSON.
        hint: The command that continues the evaluation, if it is stopped again.
        changes: Other arguments of `resume_evaluation`.
    """
    from condenset.pipeline.evaluation.run import resume_evaluation

    session = functools.partial(_session, per_class=per_class, as_json=as_json, hint=hint)
    result = resume_evaluation(directory, session=session, **changes)
    _print_result(result, per_class, as_json)


@contextlib.contextmanager
def _session(
    config: EvaluationConfig, run: RunContext, *, per_class: bool, as_json: bool, hint: str = ""
) -> Iterator[None]:
    """Announce an evaluation, show its progress, and on a signal print the scores so far."""
    from condenset.pipeline.evaluation.run import collect_records

    assert run.directory is not None
    records = collect_records(config, run)
    is_finished = len(records) == len(config.jobs) and not any("planned_networks" in record for record in records)
    num_sets = len({job.file for job in config.jobs})
    networks = ", ".join(dict.fromkeys(job.protocol.network for job in config.jobs))
    if is_finished:
        print_line("The evaluation is finished.", stderr=True)
    else:
        announce(f"Scoring {num_sets} {'set' if num_sets == 1 else 'sets'} on {networks}", run, run.directory)
    with in_terminal(run, hint or resume_hint(run.directory, per_class=per_class, json=as_json)):
        try:
            yield
        except KeyboardInterrupt:
            if records := collect_records(config, run):
                print_evaluation(records, as_json, per_class=per_class)
            raise


def _print_result(result: RunResult, per_class: bool, as_json: bool) -> None:
    print_evaluation(result.records, as_json, per_class=per_class)
    if not as_json:
        print_line()
        print_files(result.directory, results="results.json")
