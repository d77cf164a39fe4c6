"""Announce a run, show its progress, and print its results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from condenset.cli.common import announce, describe_hold_out, in_terminal, resume_hint
from condenset.cli.console import print_files, print_line, print_records

if TYPE_CHECKING:
    from condenset.data.image_data import Splits
    from condenset.pipeline.plan import Plan
    from condenset.pipeline.run import RunResult
    from condenset.runs.context import RunContext

OUTPUT_FILES = {
    **{"picture": "grid.png", "chart": "chart.png", "sets": "sets", "results": "results.json"},
    "report": "report.html",
}


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
    from condenset.data.ipc import format_ipc
    from condenset.pipeline.preview import advise_size

    assert run.directory is not None
    methods = ", ".join(dict.fromkeys(job.method for job in plan.condense_jobs))
    ipcs = list(dict.fromkeys(job.ipc for job in plan.condense_jobs))
    size = "1 image" if ipcs == [1] else f"{', '.join(map(format_ipc, ipcs))} images"
    work = f"Condensing {dataset or plan.dataset} to {size} per class with {methods}"
    announce(work + describe_hold_out(plan.load_options), run, run.directory)
    print_line(_describe_images(splits, has_test=plan.protocol is not None), stderr=True)
    if advise and (advice := advise_size(plan, splits.train)):
        print_line(advice, stderr=True)
    hint = hint or resume_hint(run.directory, per_class=per_class, json=as_json, no_report=no_report)
    with in_terminal(run, hint, tensorboard=tensorboard):
        yield


def _describe_images(splits: Splits, *, has_test: bool) -> str:
    """Return the number and shape of the images that a run uses."""
    from condenset.data.image_data import describe_images

    test = f" and {len(splits.test):,} test" if has_test and splits.test else ""
    return f"{len(splits.train):,} training{test} images of {describe_images(splits.train)}"


def print_run(result: RunResult, as_json: bool, *, per_class: bool = False) -> None:
    """Print the records of a run and the paths of its files."""
    print_records(result.records, as_json, per_class=per_class)
    if not as_json:
        print_line()
        print_files(result.directory, **OUTPUT_FILES)
