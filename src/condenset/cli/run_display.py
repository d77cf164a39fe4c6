"""Announce a run, show its progress, and print its results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from condenset.cli.common import announce, describe_hold_out, in_terminal, resume_hint
from condenset.cli.console import print_files, print_line, print_records
from condenset.errors import format_command

if TYPE_CHECKING:
    import typer

    from condenset.data.image_data import Splits
    from condenset.pipeline.plan import Plan
    from condenset.pipeline.request import RunRequest
    from condenset.pipeline.results import RunResult
    from condenset.runs.context import RunContext

MAX_METHODS = 4  # that the first line names
RESULT_FILES = {"sets": "sets", "results": "results.json"}
DRAWN_FILES = {"picture": "grid.png", "chart": "chart.png", "report": "report.html"}


@contextlib.contextmanager
def run_session(
    plan: Plan,
    splits: Splits,
    run: RunContext,
    *,
    advise: bool = True,
    hint: str = "",
    dataset: str | None = None,
    per_class: bool = False,
    as_json: bool = False,
    no_report: bool = False,
    tensorboard: bool = False,
) -> Iterator[None]:
    """Announce a run, show its progress and stop it on a signal.

    Args:
        plan, splits, run: The run.
        advise: Print advice about large images.
        hint: The command that continues the run. Empty: `resume` with the options below.
        dataset: The path of the dataset now, if it has moved.
        per_class: The run prints the accuracy of each class.
        as_json: The run prints JSON.
        no_report: The run writes no report.
        tensorboard: Write curves for TensorBoard.
    """
    from condenset.pipeline.preview import advise_size

    assert run.directory is not None
    notes = [
        _describe_images(splits, plan.load_options.scored_on if plan.protocol else ""),
        describe_hold_out(plan.load_options),
    ]
    if advise:
        notes.append(advise_size(plan, splits.train))
    announce(_describe_work(plan, dataset or plan.dataset), run, run.directory, notes)
    hint = hint or resume_hint(run.directory, per_class=per_class, json=as_json, no_report=no_report)
    with in_terminal(run, hint, tensorboard=tensorboard):
        yield


def format_plan_command(context: typer.Context, request: RunRequest) -> str:
    """Return the command `condenset plan` with the arguments of a run. Options that `plan` does not have are left out.

    Args:
        context: The command of the run.
        request: The request of the run. `plan` has the defaults of `run`.
    """
    plan = context.find_root().command.commands["plan"]  # type: ignore[attr-defined]
    names = {parameter.name for parameter in plan.params} - {"as_json"}
    words = list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if source is None or source.name != "COMMANDLINE" or parameter.name not in names:
            continue
        value = context.params[str(parameter.name)]
        if isinstance(value, bool):
            words.append((parameter.opts if value else parameter.secondary_opts)[0])
            continue
        flag = [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [*flag, str(item)]
    if not request.evaluate:
        words.append("--no-evaluate")
    elif context.info_name != "run" and not context.params["methods"]:
        words += ["--method", ",".join(request.methods)]
    return format_command("plan", *words)


def _describe_work(plan: Plan, dataset: str) -> str:
    """Return what a run does, in a line that is short enough for a terminal."""
    from condenset.data.ipc import format_ipc
    from condenset.data.reading.opening import name_dataset

    methods = list(dict.fromkeys(job.method for job in plan.condense_jobs))
    ipcs = list(dict.fromkeys(job.ipc for job in plan.condense_jobs))
    size = "1 image" if ipcs == [1] else f"{', '.join(map(format_ipc, ipcs))} images"
    names = ", ".join(methods) if len(methods) <= MAX_METHODS else f"{len(methods)} methods"
    return f"Condensing {name_dataset(Path(dataset).resolve())} to {size} per class with {names}"


def _describe_images(splits: Splits, scored_on: str) -> str:
    """Return the number and shape of the images that a run uses. `scored_on` is empty if sets are not scored."""
    from condenset.data.image_data import describe_images

    test = f" and {len(splits.test):,} {scored_on}" if scored_on and splits.test else ""
    return f"{len(splits.train):,} training{test} images of {describe_images(splits.train)}"


def print_run(result: RunResult, *, as_json: bool, per_class: bool = False) -> None:
    """Print the records of a run and the paths of its files, except those that are drawn later."""
    print_records(result.records, as_json, per_class=per_class)
    if not as_json:
        print_line()
        print_files(result.directory, **RESULT_FILES)


def print_drawn_files(result: RunResult, *, as_json: bool) -> None:
    """Print the paths of the pictures and the report of a run."""
    if not as_json:
        print_files(result.directory, **DRAWN_FILES)
