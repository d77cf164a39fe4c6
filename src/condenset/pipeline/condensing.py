"""Condense a set, or load it if it exists; several sets at once on an engine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from condenset.config import field_defaults
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError, option
from condenset.io.metadata import read_json
from condenset.methods import METHODS, Method, Recipe, method_of
from condenset.methods.common import describe_user_network
from condenset.methods.make_sets import make_sets
from condenset.methods.sharding import CondenseJob, condense_jobs, job_key, remove_shards
from condenset.methods.zca import whiten
from condenset.runs.context import RunContext
from condenset.runs.tasks import TASKS

OTHER_SIZES = "other sizes"  # key in a checkpoint's recipe: how the sets that are learned at once differ from the first


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
    if path and (stored := load_stored_set(path, recipe, data, run)):
        remove_shards(run.job, run)  # a kill may have left them after the set was saved
        return stored
    is_divided = run.engine is not None and not run.exact_steps  # exact sets with their seconds: not of shards
    _check_engine(run, is_divided=is_divided)
    data = whiten(data, recipe, run)
    shared = _choose_shared(method, recipe, data, run, others)
    run.recipe, run.previous_seconds = _checkpoint_recipe(method, recipe, list(shared.values()), data, run), 0.0
    recipes = [recipe, *shared.values()]
    if is_divided:
        ((_, sets),) = condense_jobs([CondenseJob(recipes=recipes, data=data, run=run)], run)
    else:
        sets = make_sets(METHODS[method], data, recipes, run)
    if recipe.zca and sets[0].whitening is None:
        zca = option("zca", True)
        raise UserError(f"{method} does not support {zca}, because its sets do not have the whitening: leave it out")
    if path:
        _save_sets([path, *shared], sets, run)
        run.delete_checkpoint()
        remove_shards(run.job, run)
    return sets[0]


@dataclass(frozen=True)
class SetRequest:
    """A set to condense.

    Attributes:
        path: File of the set.
        recipe: Its settings.
        data: The training images.
        run: The run, with the job and the seed of the set.
        others: Sets of other sizes, by path, that can be learned at once with it.
    """

    path: Path
    recipe: Recipe
    data: ImageData
    run: RunContext
    others: Mapping[Path, Recipe]


def condense_missing(requests: Sequence[SetRequest], run: RunContext) -> None:
    """Condense the sets that do not exist yet as tasks of the engine of a run, all at the same time."""
    jobs, paths = [], []
    covered: set[Path] = set()  # learned at once with an earlier set
    for request in requests:
        job_run, recipe, data, method = request.run, request.recipe, request.data, method_of(request.recipe).name
        if request.path in covered:
            continue
        if load_stored_set(request.path, recipe, data, job_run):
            remove_shards(job_run.job, run)  # a kill may have left them after the set was saved
            continue
        _check_engine(job_run, is_divided=True)
        shared = _choose_shared(method, recipe, data, job_run, request.others)
        job_run.recipe = _checkpoint_recipe(method, recipe, list(shared.values()), data, job_run)
        covered |= shared.keys()
        whitened = whiten(data, recipe, run)
        jobs.append(CondenseJob(recipes=[recipe, *shared.values()], data=whitened, run=job_run))
        paths.append([request.path, *shared])
    for number, sets in condense_jobs(jobs, run):
        _save_sets(paths[number], sets, run)
        remove_shards(jobs[number].run.job, run)


def _check_engine(run: RunContext, *, is_divided: bool) -> None:
    """Raise a UserError if the current job began on the other engine, whose work would be lost."""
    division = _find_division(run)
    if division and not is_divided:
        began, engine, files = "shards", "ray", str(division.parent)
    elif is_divided and not division and run.checkpoint_recipe() is not None:
        began, engine, files = "a checkpoint of one process", "local", f"{run.checkpoint_path}*"
    else:
        return
    name = f" of {run.job}" if run.job else ""
    way_out = f"continue with {option('engine', engine)}, or delete {files} to start again"
    raise UserError(f"the unfinished set{name} has {began}: {way_out}")


def _choose_shared(
    method: str, recipe: Recipe, data: ImageData, run: RunContext, others: Mapping[Path, Recipe]
) -> dict[Path, Recipe]:
    """Return the sets of other sizes that are learned at once with a set, by path."""
    if not others:
        return {}
    num_shared = _num_shared(METHODS[method], data, [recipe, *others.values()], run)
    shared = dict(list(others.items())[:num_shared])
    for path, other in shared.items():
        load_stored_set(path, other, data, run)  # fail now, not after hours, if the file is of another recipe
    return shared


def _save_sets(paths: Sequence[Path], sets: Sequence[CondensedSet], run: RunContext) -> None:
    """Save sets that were learned at once; the first one last, so that after a kill all are made again."""
    run.verify_identity()
    for path, condensed in zip(paths[1:], sets[1:], strict=True):
        if not path.exists():  # an existing file may have been scored; it equals this set up to rounding
            condensed.save(path)
    sets[0].save(paths[0])


def load_stored_set(path: Path, recipe: Recipe, data: ImageData, run: RunContext) -> CondensedSet | None:
    """Return the set at a path, or None if there is none; a set of another recipe, seed or dataset is an error."""
    if not path.exists():
        return None
    try:
        condensed = CondensedSet.load(path)
    except UserError as error:
        raise UserError(f"{error}; delete it to make the set again") from None
    provenance = condensed.provenance
    expected = {**recipe.added_fields, **_set_settings(recipe, data, run), "seed": run.seed}
    stored = {**field_defaults(recipe), **recipe.added_fields, **provenance}  # an older set lacks added fields
    stored |= provenance.get("recipe_identity", provenance.get("recipe", {}))
    if names := [name for name, value in expected.items() if stored.get(name) != value]:
        recipe_text = f"another recipe (it differs in {', '.join(names)})"
        raise UserError(f"{path} belongs to {recipe_text}: move it elsewhere to condense the set again")
    return condensed


def _set_settings(recipe: Recipe, data: ImageData, run: RunContext) -> dict[str, Any]:
    """Return the settings, except the seed, that decide a set."""
    fields = {"fingerprint": data.fingerprint, "precision": run.compute.precision}
    return {**fields, **recipe.identity(), **describe_user_network(recipe, data)}


def _num_shared(entry: Method, data: ImageData, recipes: Sequence[Recipe], run: RunContext) -> int:
    """Return how many recipes after the first are condensed at once with it.

    A checkpoint or shards decide if there are any: a resumed job must learn the same sets at once, whatever fits the
    memory now.
    """
    stored = run.checkpoint_recipe() or _read_shard_recipe(run)
    if stored is None:
        return entry.num_that_fit(data, recipes, run) - 1
    other_sizes = stored.get(OTHER_SIZES, [])
    return len(other_sizes) if isinstance(other_sizes, list) else 0


def _find_division(run: RunContext) -> Path | None:
    """Return the file that divides the current job of a run into shards, or None if the job has no shards."""
    name = f"{job_key(run.job)}.json"
    directories = [directory for directory in (run.directory, run.shared_directory) if directory]
    return next((path for directory in directories if (path := directory / TASKS / name).exists()), None)


def _read_shard_recipe(run: RunContext) -> dict[str, Any] | None:
    """Return the recipe of the shards of the current job, or None if there are none. Damage is reported later."""
    path, recipe = _find_division(run), None
    if path:
        with contextlib.suppress(UserError, KeyError, TypeError):
            recipe = read_json(path, "a division into shards")["settings"]["recipe"]
    return recipe if isinstance(recipe, dict) else None


def _checkpoint_recipe(
    method: str, recipe: Recipe, others: Sequence[Recipe], data: ImageData, run: RunContext
) -> dict[str, object]:
    """Return the settings, except the seed, that a checkpoint must agree with."""
    fields = {"method": method, **_set_settings(recipe, data, run)}
    differences = [
        {name: value for name, value in other.identity().items() if value != fields[name]} for other in others
    ]
    return {**fields, OTHER_SIZES: differences} if differences else fields
