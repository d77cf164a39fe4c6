"""Execute a plan: condense and score every set, write results and figures. A stopped run continues where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData, Splits
from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.methods import METHODS, Method, Recipe
from condenset.pipeline.plan import Job, Plan, job_name
from condenset.pipeline.results import Record, make_record, read_results, write_results
from condenset.report.charts import save_comparison
from condenset.report.grid import save_grid
from condenset.runs.context import RunContext
from condenset.training.evaluation import score_set
from condenset.training.scores import name_protocol

OTHER_SIZES = "other sizes"  # key in a checkpoint's recipe: how the sets that are learned at once differ from the first


def execute_plan(plan: Plan, splits: Splits, run: RunContext) -> list[Record]:
    """Execute the jobs that have no result yet, and return the records of all jobs.

    With a run directory, the records are also written to results.json after every job.
    """
    run.verify_identity()
    stored = read_results(run.directory, run.settings_hash)
    records = {job_name(record["method"], record["ipc"]): record for record in stored if "accuracy_mean" in record}
    keys = [job.name for job in plan.jobs]
    for number, (key, job) in enumerate(zip(keys, plan.jobs, strict=True), start=1):
        if key in records and _has_set(plan, job, splits.train, run):
            continue
        run.job = job.name
        run.progress.job_label = f"{number}/{len(keys)}" if len(keys) > 1 else ""
        train_set: CondensedSet | ImageData
        if job.recipe is None:
            run.compute.reset_peak_memory()
            train_set, protocol, description = splits.train, plan.whole, "whole dataset"
        else:
            path, others = _set_paths(plan, job, run.directory)
            train_set = load_or_condense(path, job.method, job.recipe, splits.train, run, others)
            protocol, description = plan.protocol, f"{job.name}: scoring"
        scores = score_set(train_set, splits.require_test(), protocol, run, description) if protocol else None
        records[key] = make_record(plan.dataset, train_set, scores, run)
        finished = [records[key] for key in keys if key in records]
        if run.directory and finished != stored[: len(finished)]:  # do not drop later records
            run.verify_identity()
            write_results(run.directory / "results.json", finished)
    if run.directory:
        run.delete_checkpoint()  # a kill may have left it after the last set was saved
        run.verify_identity()
        _save_figures(plan, [records[key] for key in keys], splits.train.name, run.directory)
    return [records[key] for key in keys]


def load_or_condense(
    path: Path | None,
    method: str,
    recipe: Recipe,
    data: ImageData,
    run: RunContext,
    others: Mapping[Path, Recipe] = MappingProxyType({}),
) -> CondensedSet:
    """Return the set at `path` if it exists; else condense it and save it there.

    Args:
        path: File of the set. None: the set is not saved.
        method: Name of the method.
        recipe: Settings of the method.
        data: The training images.
        run: The run.
        others: Sets of other sizes, by path. As many of them as fit the memory limit are learned at once with this set
            and saved, except where a file exists.
    """
    if path and (stored := _load_stored_set(path, recipe, data, run)):
        return stored
    entry = METHODS[method]
    shared = dict(list(others.items())[: _num_shared(entry, data, [recipe, *others.values()], run)]) if others else {}
    for other_path, other in shared.items():
        _load_stored_set(other_path, other, data, run)  # fail now, not after hours, if the file is of another recipe
    run.recipe, run.previous_seconds = _checkpoint_recipe(method, recipe, list(shared.values()), data, run), 0.0
    if shared:
        assert entry.condense_sizes is not None
        condensed, *other_sets = entry.condense_sizes(data, [recipe, *shared.values()], run)
    else:
        condensed, other_sets = entry.condense(data, recipe, run), []
    run.verify_identity()
    for other_path, other_set in zip(shared, other_sets, strict=True):
        if not other_path.exists():  # an existing file may have been scored; it equals this set up to rounding
            other_set.save(other_path)
    if path:  # saved last, so that after a kill all sets are made again
        condensed.save(path)
        run.delete_checkpoint()
    return condensed


def _load_stored_set(path: Path, recipe: Recipe, data: ImageData, run: RunContext) -> CondensedSet | None:
    """Return the set at a path, or None if there is none; a set of another recipe, seed or dataset is an error."""
    if not path.exists():
        return None
    try:
        condensed = CondensedSet.load(path)
    except UserError as error:
        raise UserError(f"{error}; delete it to make the set again") from None
    provenance = condensed.provenance
    expected = _set_settings(recipe, data, run) | {"seed": run.seed}
    stored = {**provenance, **provenance.get("recipe_identity", provenance.get("recipe", {}))}
    if names := [name for name, value in expected.items() if stored.get(name) != value]:
        recipe_text = f"another recipe (it differs in {', '.join(names)})"
        raise UserError(f"{path} belongs to {recipe_text}: move it elsewhere to condense the set again")
    return condensed


def _has_set(plan: Plan, job: Job, data: ImageData, run: RunContext) -> bool:
    """Return whether the set of a job exists or none is needed; a damaged set is an error, also after the scoring."""
    if job.recipe is None or run.directory is None:
        return True
    return _load_stored_set(plan.set_path(job, run.directory), job.recipe, data, run) is not None


def _set_settings(recipe: Recipe, data: ImageData, run: RunContext) -> dict[str, Any]:
    """Return the settings, except the seed, that decide a set."""
    return {"fingerprint": data.fingerprint, "precision": run.compute.precision, **recipe.identity()}


def _num_shared(entry: Method, data: ImageData, recipes: Sequence[Recipe], run: RunContext) -> int:
    """Return how many recipes after the first are condensed at once with it.

    A checkpoint decides if there is one: a resumed job must learn the same sets at once, whatever fits the memory now.
    """
    checkpoint = run.checkpoint_recipe()
    if checkpoint is None:
        return entry.num_that_fit(data, recipes, run) - 1
    other_sizes = checkpoint.get(OTHER_SIZES, [])
    return len(other_sizes) if isinstance(other_sizes, list) else 0


def _checkpoint_recipe(
    method: str, recipe: Recipe, others: Sequence[Recipe], data: ImageData, run: RunContext
) -> dict[str, object]:
    """Return the settings, except the seed, that a checkpoint must agree with."""
    fields = {"method": method, **_set_settings(recipe, data, run)}
    differences = [
        {name: value for name, value in other.identity().items() if value != fields[name]} for other in others
    ]
    return {**fields, OTHER_SIZES: differences} if differences else fields


def _set_paths(plan: Plan, job: Job, directory: Path | None) -> tuple[Path | None, dict[Path, Recipe]]:
    """Return the file of a job's set, and the recipes that can be learned at once with it, by file."""
    if directory is None:
        return None, {}
    others = {plan.set_path(other, directory): other.recipe for other in plan.jobs_to_share(job) if other.recipe}
    return plan.set_path(job, directory), others


def _save_figures(plan: Plan, records: list[Record], dataset: str, directory: Path) -> None:
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
