"""Write the HTML report of a run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from condenset.config import MAX_NETWORKS, field_names
from condenset.data.image_data import Splits
from condenset.errors import UserError, check_int, check_path, format_command, option, warn_user
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.io.progress import NullProgress, make_progress
from condenset.pipeline.datasets import reload_data
from condenset.pipeline.plan import WHOLE
from condenset.pipeline.report.content import collect_content, name_curve_command
from condenset.pipeline.report.snapshot_scores import read_snapshot_plan, score_snapshots
from condenset.pipeline.sets import shortest_names
from condenset.report.html import ReportContent, render_report
from condenset.report.html.content import Update, ignore_update
from condenset.runs.context import RunContext
from condenset.runs.listing import REPORT
from condenset.training.protocol import Protocol

StrPath = str | os.PathLike[str]
WHOLE_FIELDS = ("scoring", "seed", "test_fingerprint")  # runs that agree in them have the same score of all images


def write_report(
    run_directory: StrPath | Sequence[StrPath],
    out: StrPath | None = None,
    *,
    overwrite: bool = False,
    num_networks: int = 0,
    verbose: bool = True,
) -> Path:
    """Write the HTML report of a run: one page that needs no network access.

    It shows the result in one sentence, the images, a map of their features, curves, a table of methods, accuracies
    per class, and how to repeat the run. What is not available is left out, with the reason.

    Args:
        run_directory: Directory of a run, an evaluation or an experiment; or several directories of runs on the same
            dataset, for one page.
        out: The file. None: `report.html` in the directory of the run, which is replaced.
        overwrite: Replace an existing file `out`.
        num_networks: Networks to train on every snapshot, for the curve of accuracy against iterations. 0: no curve,
            except of snapshots that have been scored before.
        verbose: Show progress.

    Returns:
        The path of the page.

    Raises:
        UserError: There are no results, a file is damaged, or `out` exists.
    """
    check_int("num_networks", num_networks, 0, MAX_NETWORKS)
    paths = [run_directory] if isinstance(run_directory, str | os.PathLike) else run_directory
    directories = [Path(path) for path in paths]
    if not directories:
        raise UserError("a report needs at least one run directory")
    path = _choose_file(directories, out, overwrite=overwrite)
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise UserError(f"the runs of one report must be different, but got {', '.join(map(str, directories))}")
    progress = make_progress(verbose)
    plans = {directory: read_snapshot_plan(directory) for directory in directories} if num_networks else {}
    for directory, plan in plans.items():
        score_snapshots(directory, plan, reload_data(plan, None, directory), num_networks, progress)
    progress.job_label = ""
    with show_activity(progress) as update:
        contents = [collect_content(directory) for directory in directories]
        save_page(path, merge_contents(contents, directories), update)
    return path


def write_run_report(run: RunContext, splits: Splits | None = None) -> None:
    """Write the report of a finished run into its directory. A failure is a warning: the results are complete.

    Args:
        run: The run.
        splits: The images of the run, if it has some.
    """
    assert run.directory is not None, "a report needs a directory"
    run.verify_identity()
    run.progress.job_label = ""
    path, results = run.directory / REPORT, run.directory / "results.json"
    if path.exists() and path.stat().st_mtime_ns >= results.stat().st_mtime_ns:
        return  # the run was complete before it was resumed
    try:
        with show_activity(run.progress) as update:
            save_page(path, collect_content(run.directory, splits), update)
    except Exception as error:  # also a bug: the command in the warning shows its traceback
        if run.stop.requested:  # a library may turn the interruption into an error of another type
            raise
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        warn_user(f"there is no report: {reason}; write it with '{format_command('report', run.directory)}'")


@contextlib.contextmanager
def show_activity(progress: NullProgress) -> Iterator[Update]:
    """Show that the report is being written. Yields a function to call with the share that is complete."""
    progress.start("writing the report", 100, unit="%")
    try:
        yield lambda share: progress.update(100 * share)
    finally:
        progress.stop()


def _choose_file(directories: Sequence[Path], out: StrPath | None, *, overwrite: bool) -> Path:
    """Return the file of a report: `out`, else `report.html` in the directory of the run."""
    if out is None:
        if len(directories) > 1:
            raise UserError(f"a report of several runs needs a file: give {option('out', 'report.html')}")
        return directories[0] / REPORT
    check_path("out", out)
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"a report must be an .html file, but got '{path}'")
    if path.exists() and not overwrite:
        raise UserError(f"{path} exists already: choose another file, or replace it with {option('overwrite', True)}")
    return path


def save_page(path: Path, content: ReportContent, update: Update = ignore_update) -> None:
    """Write the page of a report, completely or not at all. `update` gets the share that is complete."""
    page = render_report(content, update)
    with wrap_os_errors(path):
        write_file(path, page.encode())


def merge_contents(contents: Sequence[ReportContent], directories: Sequence[Path]) -> ReportContent:
    """Return the contents of one page about several runs on one dataset. Labels name the run.

    Raises:
        UserError: The runs have different training or test images.
    """
    if len(contents) == 1:
        return contents[0]
    prints = {str(item.condensed.provenance.get("fingerprint")) for content in contents for item in content.sets}
    if len(prints) != 1 or not all(content.sets for content in contents):
        raise UserError("the runs of one report must have the same training images: write a report for each run")
    _check_test_images(contents, directories)
    names = shortest_names([directory.resolve() for directory in directories])
    pairs = list(zip(contents, names, strict=True))
    first = max(contents, key=lambda item: (item.train is not None, any(r["method"] == WHOLE for r in item.records)))
    return dataclasses.replace(
        first,
        answer=_describe_differences(pairs),
        records=[
            {**_add_name(record, name), "run": name}
            for content, name in pairs
            for record in content.records
            if record.get("method") != WHOLE
        ]
        + _merge_wholes(pairs),
        sets=[
            dataclasses.replace(item, label=f"{item.label} ({name})", file=f"{name}/{item.file}")
            for content, name in pairs
            for item in content.sets
        ],
        steps=[_add_name(step, name) for content, name in pairs for step in content.steps],
        snapshot_scores=[_add_name(score, name) for content, name in pairs for score in content.snapshot_scores],
        curve_command=name_curve_command(*directories) if all(item.curve_command for item in contents) else "",
        notices=[f"{name}: {notice}" for content, name in pairs for notice in content.notices],
        settings={f"{name}: {label}": text for content, name in pairs for label, text in content.settings.items()},
        recipes={f"{name}/{file}": text for content, name in pairs for file, text in content.recipes.items()},
    )


def _check_test_images(contents: Sequence[ReportContent], directories: Sequence[Path]) -> None:
    """Raise a UserError if the sets of the runs are scored on different images."""
    fingerprints = {record["test_fingerprint"] for content in contents for record in content.scored}
    if len(fingerprints - {""}) > 1:
        command = format_command("evaluate", *directories, "--dataset", "DATASET", "--out", "DIRECTORY")
        way_out = f"write a report for each run, or score their sets on the same images with '{command}'"
        raise UserError(f"the runs of one report must have the same test images: {way_out}")


def _describe_differences(pairs: Sequence[tuple[ReportContent, str]]) -> str:
    """Return how the protocols of the runs differ, as the first sentence of the page. Empty: they are equal."""
    sets = [(name, record) for content, name in pairs for record in content.scored if record["method"] != WHOLE]
    protocols: dict[str, Protocol] = {name: record["scoring"] for name, record in sets}
    texts = []
    for field in sorted(field_names(Protocol) - {"num_networks"}):
        values = {name: getattr(protocol, field) for name, protocol in protocols.items()}
        if len(set(values.values())) > 1:
            texts.append(f"{field}: " + ", ".join(f"{value} in {name}" for name, value in values.items()))
    reason = f"because their networks train differently ({'; '.join(texts)})"
    return f"The accuracies of these runs cannot be compared, {reason}." if texts else ""


def _merge_wholes(pairs: Sequence[tuple[ReportContent, str]]) -> list[dict[str, Any]]:
    """Return the record of the whole dataset that all runs have in common, else those of each run."""
    wholes = [(record, name) for content, name in pairs for record in content.records if record["method"] == WHOLE]
    if all(record[field] == wholes[0][0][field] for record, _ in wholes for field in WHOLE_FIELDS):
        return [dict(record) for record, _ in wholes[:1]]
    return [{**_add_name(record, name), "run": name} for record, name in wholes]


def _add_name(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a record whose label names the run."""
    return {**record, "label": f"{record['label']} ({name})"}
