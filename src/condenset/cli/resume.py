"""The command `condenset resume`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from condenset.cli.common import drop_unset, in_terminal, parse_memory_limit, resume_hint
from condenset.cli.console import print_line
from condenset.cli.evaluate import resume_and_print
from condenset.cli.evaluation_options import PerClass
from condenset.cli.option_groups import OptionValues, expand_groups
from condenset.cli.options import AsJson, Report, ResumeDataDir, ResumeDevice, ResumeMemoryLimit, expand_path
from condenset.cli.paper import experiment_session, print_experiment
from condenset.cli.run_display import print_drawn_files, print_run, run_session
from condenset.cli.signals import exit_on_signal
from condenset.cli.startup import import_torch
from condenset.errors import UserError
from condenset.io.metadata import check_run_exists

if TYPE_CHECKING:
    from condenset.data.image_data import Splits
    from condenset.pipeline.plan import Plan
    from condenset.runs.context import RunContext


@expand_groups
def resume_command(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", callback=expand_path, help="Directory of a run, an evaluation or an experiment to continue."
        ),
    ],
    device: ResumeDevice = None,
    memory_limit: ResumeMemoryLimit = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="PATH", help="New path of the dataset, if it has moved.")
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="PATH", help="New path of the test images, if --test was given.")
    ] = None,
    data_dir: ResumeDataDir = None,
    *,
    engine_fields: OptionValues,
    report: Report = True,
    per_class: PerClass = False,
    as_json: AsJson = False,
) -> None:
    """Continue a run that was stopped or killed. The result is the same as without the stop."""
    changes = drop_unset(device=device, memory_limit=parse_memory_limit(memory_limit), data_dir=data_dir)
    check_run_exists(directory)
    import_torch()
    changes |= {"moved_to": dataset, "test_moved_to": test, "engine_fields": engine_fields}
    options = {"device": device, "memory": memory_limit, "dataset": dataset, "test": test, "data_dir": data_dir}
    display = {"per_class": per_class, "json": as_json, "no_report": not report}
    hint = resume_hint(directory, **options, **engine_fields, **display)
    with exit_on_signal(hint=hint):  # also while data are loaded
        _resume(directory, per_class, as_json, report, hint, changes)


def _resume(directory: Path, per_class: bool, as_json: bool, report: bool, hint: str, changes: dict[str, Any]) -> None:
    """Continue a run, an evaluation or an experiment, and print its result.

    Args:
        directory: Its directory.
        per_class: Print the accuracy of each class.
        as_json: Print JSON.
        report: Write the HTML report of a run or an experiment.
        hint: The command that continues it, if it is stopped again.
        changes: Arguments of `resume_run`, `resume_evaluation` and `resume_experiment`.
    """
    from condenset.experiments.start import resume_experiment
    from condenset.pipeline.run import resume_run

    if (directory / "experiment.toml").is_file():
        if per_class:
            raise UserError("--per-class has no effect on an experiment: resume it without")
        experiment = functools.partial(experiment_session, hint=hint, dataset=changes["moved_to"])
        print_experiment(resume_experiment(directory, session=experiment, report=report, **changes), as_json)
    elif (directory / "evaluation.toml").is_file():
        resume_and_print(directory, per_class=per_class, as_json=as_json, hint=hint, **changes)
    else:
        session = functools.partial(_run_session, hint=hint, dataset=changes["moved_to"])
        show_result = functools.partial(print_run, as_json=as_json, per_class=per_class)
        result = resume_run(directory, session=session, show_result=show_result, report=report, **changes)
        print_drawn_files(result, as_json=as_json)


@contextlib.contextmanager
def _run_session(plan: Plan, splits: Splits, run: RunContext, *, hint: str, dataset: str | None) -> Iterator[None]:
    """Announce the rest of a run and show its progress, or say that there is no rest."""
    if not _is_finished(plan, run):
        with run_session(plan, splits, run, advise=False, hint=hint, dataset=dataset):
            yield
        return
    print_line("The run is finished.", stderr=True)
    with in_terminal(run, hint):  # it may still write a missing report
        yield


def _is_finished(plan: Plan, run: RunContext) -> bool:
    """Return whether every job of a run has a result and a set file."""
    from condenset.data.ipc import name_set
    from condenset.pipeline.results import read_results

    assert run.directory is not None
    names = {name_set(record["method"], record["ipc"]) for record in read_results(run.directory, run.settings_hash)}
    has_sets = all(plan.set_path(job, run.directory).exists() for job in plan.condense_jobs)
    return has_sets and all(job.name in names for job in plan.jobs)
