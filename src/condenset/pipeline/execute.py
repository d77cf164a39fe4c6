"""Execute a plan: condense and score every set, write results, draw. A stopped run continues where it stopped."""

from __future__ import annotations

from pathlib import Path

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits
from condenset.data.ipc import name_set
from condenset.io.directories import wrap_os_errors
from condenset.methods import METHODS, Recipe
from condenset.pipeline.condensing import SetRequest, condense_missing, load_or_condense, load_stored_set
from condenset.pipeline.plan import Job, Plan
from condenset.pipeline.remaining_time import CONDENSING, SCORING, RemainingTime
from condenset.pipeline.results import Record, make_record, read_results, write_results
from condenset.report.charts import save_comparison
from condenset.report.grid import save_grid
from condenset.runs.context import RunContext
from condenset.training.scores import name_protocol
from condenset.training.scoring import ScoreRequest, score_set, score_together

WHOLE_NETWORK = "networks/whole.safetensors"  # trained on the whole dataset; the report shows its features


def execute_plan(plan: Plan, splits: Splits, run: RunContext) -> list[Record]:
    """Execute the jobs that have no result yet, and return the records of all jobs.

    The run must have a directory. The records are also written to its results.json after every job.
    """
    directory = run.directory
    assert directory is not None
    run.verify_identity()
    stored = read_results(directory, run.settings_hash)
    records = {name_set(record["method"], record["ipc"]): record for record in stored if "accuracy_mean" in record}
    keys = [job.name for job in plan.jobs]
    if run.engine is not None:
        _condense_on_engine(plan, splits.train, run, directory)
        if any(key not in records for key in keys):
            _score_on_engine(plan, splits, run, directory)
    condensed = {job.name for job in plan.condense_jobs if plan.set_path(job, directory).exists()}
    remaining = RemainingTime(plan, splits.train, records, condensed)
    run.progress.estimate_run = remaining  # not of the engine, which works on all jobs at once
    for number, (key, job) in enumerate(zip(keys, plan.jobs, strict=True), start=1):
        if key in records and _has_set(plan, job, splits.train, run, directory):
            continue
        run.progress.job_label = f"{number}/{len(keys)}" if len(keys) > 1 else ""
        records[key] = _execute_job(plan, job, splits, run, directory, remaining)
        finished = [records[key] for key in keys if key in records]
        if finished != stored[: len(finished)]:  # do not drop later records
            run.verify_identity()
            write_results(directory / "results.json", finished)
    run.progress.estimate_run = None
    run.delete_checkpoint()  # a kill may have left it after the last set was saved
    run.verify_identity()
    return [records[key] for key in keys]


def _execute_job(
    plan: Plan, job: Job, splits: Splits, run: RunContext, directory: Path, remaining: RemainingTime
) -> Record:
    """Condense and score the set of a job, or score the whole dataset, and return the record."""
    run.job = job.name
    remaining.begin(job.name, CONDENSING)
    train_set: CondensedSet | ImageData
    if job.recipe is None:
        run.compute.reset_peak_memory()
        train_set, description = splits.train, "whole dataset"
    else:
        path, others = _set_paths(plan, job, directory)
        train_set = load_or_condense(path, job.method, job.recipe, splits.train, run, others)
        description = f"{job.name}: scoring"
    remaining.begin(job.name, SCORING)
    network_file = directory / WHOLE_NETWORK if job.recipe is None else None
    protocol = plan.protocol_of(job)
    test = splits.require_test() if protocol else None
    scores = score_set(train_set, test, protocol, run, description, network_file) if protocol and test else None
    return make_record(plan.dataset, train_set, scores, run, scored_on=plan.load_options.scored_on)


def _condense_on_engine(plan: Plan, data: ImageData, run: RunContext, directory: Path) -> None:
    """Condense the sets of all jobs that do not exist yet, as tasks of the engine of the run."""
    requests = []
    for job in plan.condense_jobs:
        assert job.recipe is not None
        path, others = _set_paths(plan, job, directory)
        requests.append(SetRequest(path, job.recipe, data, run.derive(job=job.name), others))
    condense_missing(requests, run)


def _score_on_engine(plan: Plan, splits: Splits, run: RunContext, directory: Path) -> None:
    """Score the sets of all jobs as tasks of the engine of the run, at the same time."""
    requests = []
    for job in plan.jobs:
        protocol = plan.protocol_of(job)
        if protocol is not None:
            train_set = CondensedSet.load(plan.set_path(job, directory)) if job.recipe else splits.train
            requests.append(ScoreRequest(train_set, splits.require_test(), protocol, run.derive(job=job.name)))
    score_together(requests, run)


def _has_set(plan: Plan, job: Job, data: ImageData, run: RunContext, directory: Path) -> bool:
    """Return whether the set of a job exists or none is needed; a damaged set is an error, also after the scoring."""
    return job.recipe is None or load_stored_set(plan.set_path(job, directory), job.recipe, data, run) is not None


def _set_paths(plan: Plan, job: Job, directory: Path) -> tuple[Path, dict[Path, Recipe]]:
    """Return the file of a job's set, and the recipes that can be learned at once with it, by file."""
    others = {plan.set_path(other, directory): other.recipe for other in plan.jobs_to_share(job) if other.recipe}
    return plan.set_path(job, directory), others


def save_figures(plan: Plan, records: list[Record], dataset: str, directory: Path) -> None:
    """Draw the sets and, if there are several methods, accuracy against time. Existing figures stay."""
    grid, chart = directory / "grid.png", directory / "chart.png"
    if not grid.exists():
        learned = [job for job in plan.condense_jobs if not METHODS[job.method].is_coreset]
        jobs = learned or plan.condense_jobs
        with wrap_os_errors(grid):
            save_grid([CondensedSet.load(plan.set_path(job, directory)) for job in jobs], grid)
    scored = [record for record in records if "accuracy_mean" in record]
    if len({record["method"] for record in scored if record["ipc"]}) > 1 and not chart.exists():
        with wrap_os_errors(chart):
            save_comparison(scored, name_protocol(dataset, scored[0].get("protocol")), chart)
