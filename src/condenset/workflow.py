"""A whole run: condense, score, picture, in one directory that can be stopped and gone on with."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from condenset.data.validation import is_part
from condenset.errors import UserError, check, is_number
from condenset.estimates import Work, seconds_of
from condenset.evaluation import protocol_for, score
from condenset.files import write_file
from condenset.folders import is_run, writable
from condenset.methods import METHODS
from condenset.methods.matching import dm_sizes, fitting
from condenset.methods.pools import Pool
from condenset.plans import WHOLE, Job, Plan, from_toml
from condenset.recipes import CoresetRecipe, DistributionRecipe, MatchingRecipe, Recipe
from condenset.report.charts import save_comparison
from condenset.report.grid import save_grid
from condenset.runs import Run, is_share
from condenset.types import CondensedSet, ImageData, Scores, Splits
from condenset.version import VERSION

NEEDED = ("method", "ipc", "network", "condense_seconds")  # what a table needs of a record
OTHER_SIZES = "other sizes"  # of a set, learned at once with it: a part of its checkpoint's recipe
SCORED = ("accuracies", "accuracy_mean", "accuracy_std")  # and of one whose set was scored


def execute(plan: Plan, splits: Splits, run: Run) -> list[dict[str, Any]]:
    """Do every job that is not done yet; give the records of all, which results.json holds too."""
    finished = read_results(run.folder)
    done = {(record["method"], record["ipc"]): record for record in finished if "accuracy_mean" in record}
    keys = [(job.method, job.ipc) for job in plan.jobs]
    left = [_work(plan, job, splits, run.folder) for job in plan.jobs if (job.method, job.ipc) not in done]
    run.progress.foretell(lambda: sum(seconds_of(left, splits, run.place)))
    for number, (key, job) in enumerate(zip(keys, plan.jobs, strict=True), start=1):
        if key not in done:
            run.progress.part = f"{number}/{len(keys)}" if len(keys) > 1 else ""
            done[key] = _do(plan, job, splits, run)
            records = [done[key] for key in keys if key in done]
            if run.folder and records != finished[: len(records)]:
                write_results(run.folder / "results.json", records)
    if run.folder:
        run.drop_checkpoint()  # a kill may have come between the last set and this
        _picture(plan, run.folder / "grid.png")
        _chart([done[key] for key in keys], splits.train.name, run.folder / "chart.png")
    return [done[key] for key in keys]


def _work(plan: Plan, job: Job, splits: Splits, folder: Path | None) -> Work:
    """What there is to do for a job; a set that is there is not made again."""
    if job.recipe is None:
        return Work(None, plan.whole, len(splits.train))
    made = folder is not None and plan.set_path(job, folder).exists()
    return Work(None if made else job.recipe, plan.protocol, job.recipe.ipc * splits.train.num_classes)


def _do(plan: Plan, job: Job, splits: Splits, run: Run) -> dict[str, Any]:
    run.job = job.name
    if job.recipe is None:
        assert plan.whole is not None
        run.place.reset_peak_memory()
        return _record(plan.dataset, None, score(splits.train, splits.test, plan.whole, run, "whole dataset"), run)
    path, others = None, {}
    if run.folder:
        path = plan.set_path(job, run.folder)
        others = {plan.set_path(each, run.folder): each.recipe for each in plan.later_sizes(job) if each.recipe}
    small = made_set(path, job.method, job.recipe, splits.train, run, others)
    scores = score(small, splits.test, plan.protocol, run, f"{job.name}: testing") if plan.protocol else None
    return _record(plan.dataset, small, scores, run)


def made_set(
    path: Path | None,
    method: str,
    recipe: Recipe,
    data: ImageData,
    run: Run,
    others: Mapping[Path, Recipe] = MappingProxyType({}),
) -> CondensedSet:
    """The set that a method makes: read if it is at `path` already, else made, and saved there.

    others: sets of other sizes, as many of which as fit the memory are made with it and saved as well, where there is
    none yet; only `dm` has such (`matching.can_be_one`).
    """
    if path and (known := _known_set(path, recipe, data, run)):
        return known
    sizes = [each for each in (recipe, *others.values()) if isinstance(each, MatchingRecipe)]
    sizes = sizes[: _at_once(data, sizes, run)] if others else []
    others = dict(zip(others, sizes[1:], strict=False))
    for place, each in others.items():
        _known_set(place, each, data, run)  # somebody else's is refused before hours are spent
    fields = {"method": method, "fingerprint": data.fingerprint, **dataclasses.asdict(recipe)}
    differ = [{k: v for k, v in dataclasses.asdict(each).items() if v != fields[k]} for each in others.values()]
    run.recipe = fields | ({OTHER_SIZES: differ} if differ else {})
    run.seconds_before = 0.0
    if others:
        small, *rest = dm_sizes(data, sizes, run)
    else:
        small, rest = METHODS[method](data, recipe, run), []
    for place, made in zip(others, rest, strict=True):
        if not place.exists():  # what is there may have been scored: it stays, and is the same but for rounding
            made.save(place)
    if path:  # the last: where a kill comes before, all are made again
        small.save(path)
        run.drop_checkpoint()
    return small


def _at_once(data: ImageData, sizes: Sequence[MatchingRecipe], run: Run) -> int:
    """How many sizes are learned together: as many as fit, or as were begun before a stop, whatever fits by now."""
    kept = run.kept_recipe()
    if kept is None:
        return fitting(data, sizes, run)
    begun = kept.get(OTHER_SIZES, [])
    return 1 + len(begun) if isinstance(begun, list) else 1


def _known_set(path: Path, recipe: Recipe, data: ImageData, run: Run) -> CondensedSet | None:
    """The set at this path, if there is one; another recipe's is refused."""
    if not path.exists():
        return None
    try:
        small = CondensedSet.load(path)
    except UserError as error:
        raise UserError(f"{error}; delete it to make it again") from None
    kept, wanted = small.provenance.get("recipe"), dataclasses.asdict(recipe)
    if isinstance(recipe, DistributionRecipe) and recipe.pool and isinstance(kept, dict):
        pool = small.provenance.get("pool")  # which networks, not where they lie
        kept = {**kept, "pool": pool.get("fingerprint") if isinstance(pool, dict) else None}
        wanted |= {"pool": Pool.load(recipe.pool).fingerprint}
    mine = (wanted, run.seed, data.fingerprint)
    if mine != (kept, small.provenance.get("seed"), small.provenance.get("fingerprint")):
        raise UserError(f"{path} belongs to another recipe; move it away to make this job's set")
    return small


def _record(dataset: str, small: CondensedSet | None, scores: Scores | None, run: Run) -> dict[str, Any]:
    """One row of results.json; without a set it is the whole dataset's."""
    about: Mapping[str, Any] = small.provenance if small else {"method": WHOLE, "seconds": 0.0}
    recipe = about.get("recipe", {})
    accuracy: dict[str, Any] = {}
    if scores:
        accuracy = {
            "accuracy_mean": scores.mean,
            "accuracy_std": scores.std,
            "accuracies": list(scores.accuracies),
            **_length(scores.protocol),
            "augment": scores.protocol["augment"],
        }
    return {
        "dataset": dataset,
        "method": about.get("method"),
        "ipc": recipe.get("ipc"),
        "seed": run.seed,
        "network": scores.protocol["network"] if scores else recipe.get("network"),
        **accuracy,
        **cost_of({"peak_memory_bytes": run.place.peak_memory(), **about}),
        **({"evaluate_seconds": round(scores.seconds, 3)} if scores else {}),
        "iterations": recipe.get("iterations", 0),
        "condense_lr": recipe.get("lr"),
        "device": str(run.place.device),
        "version": VERSION,
    }


def _length(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """How long networks were trained: epochs, or what stood in their place."""
    name = "own_steps" if protocol["own_steps"] else "steps" if protocol["steps"] else "epochs"
    return {name: protocol[name]}


def cost_of(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a set's provenance says of its making: seconds, memory, and the sizes that took these `together`."""
    seconds, sizes, memory = about.get("seconds"), about.get("together"), about.get("peak_memory_bytes")
    return {
        "condense_seconds": seconds if is_number(seconds) else None,
        **({"together": sizes} if isinstance(sizes, list) else {}),
        **({"peak_memory_bytes": memory} if isinstance(memory, int) else {}),
    }


def _picture(plan: Plan, path: Path) -> None:
    """The sets that were learned (or chosen, where none was), side by side; drawn once."""
    if path.exists():
        return
    shown = [job for job in plan.made if not isinstance(job.recipe, CoresetRecipe)] or plan.made
    with writable(path):
        save_grid([CondensedSet.load(plan.set_path(job, path.parent)) for job in shown], path)


def _chart(records: list[dict[str, Any]], dataset: str, path: Path) -> None:
    """Accuracy against seconds, where methods are there to compare; drawn once."""
    scored = [record for record in records if "accuracy_mean" in record]
    if len({record["method"] for record in scored if record["ipc"]}) > 1 and not path.exists():
        with writable(path):
            save_comparison(scored, dataset, path)


def write_results(path: Path, records: list[dict[str, Any]]) -> None:
    """Records as a JSON file, whole or not at all."""
    with writable(path):
        write_file(path, json.dumps(records, indent=1).encode() + b"\n")


def read_results(folder: Path | None) -> list[dict[str, Any]]:
    """The records of the jobs that are done."""
    path = folder / "results.json" if folder else None
    if path is None or not path.exists():
        return []
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        records = None
    if not isinstance(records, list) or not all(is_record(record, NEEDED) for record in records):
        raise UserError(f"{path} is not a list of results; delete it to make it again")
    return records


def is_record(record: object, needed: Collection[str]) -> TypeGuard[dict[str, Any]]:
    """Whether this is a record with the fields that are needed of it, those of a score all or none."""
    if not isinstance(record, dict):
        return False
    needed = {*needed, *(SCORED if "accuracy_mean" in record else ())}
    return needed <= record.keys() and all(_fits(key, value) for key, value in record.items())


def _fits(key: str, value: object) -> bool:
    """Whether this can be the value of a record's field."""
    match key:
        case "method" | "network":
            return isinstance(value, str | None)
        case "ipc" | "condense_seconds" | "evaluate_seconds":
            return value is None or is_number(value)
        case "seconds":
            return is_number(value)
        case "accuracy_mean" | "accuracy_std":
            return is_share(value)
        case "accuracies":
            return isinstance(value, list) and bool(value) and all(map(is_share, value))
        case "together":
            return isinstance(value, list)
    return True


def find_sets(path: Path) -> list[Path]:
    """A set file itself, the condensed.safetensors of a run's folder, or the set files of any other, by name."""
    if not path.is_dir():
        return [path]
    if (path / "condensed.safetensors").exists():
        return [path / "condensed.safetensors"]
    if (path / "experiment.toml").is_file():
        raise UserError(f"{path} is an experiment: its sets lie in folders of {path / 'parts'}")
    if is_run(path):
        raise UserError(f"{path} is a run that has no condensed.safetensors yet: 'condenset resume {path}' makes it")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise UserError(f"{path} is neither a run nor a folder of set files (.safetensors)")
    return files


def find_set(path: Path) -> tuple[CondensedSet, Path]:
    """A set file, or the one in a folder."""
    files = find_sets(path)
    if len(files) > 1:
        raise UserError(f"{path} holds {len(files)} set files: name one of them, such as {files[0]}")
    return CondensedSet.load(files[0]), files[0]


def evaluate_file(
    path: Path,
    run: Run,
    load: Callable[..., Splits],
    fields: dict[str, Any],
    source: dict[str, Any],
    seed: int | None = None,
) -> dict[str, Any]:
    """Score a set file on the test images of its own dataset, or of another; a record like a run's.

    source: what was given of load's dataset, data_dir and size; fields: of the protocol's; seed: else the set's own,
    so that the score of a run is repeated.
    """
    small, file = find_set(path)
    own = small.provenance.get("seed")
    run.seed = seed if seed is not None else own if isinstance(own, int) else 0
    given = "dataset" in source
    source = source if given else {**_origin(small, file), **source}
    named = isinstance(source["dataset"], str) and source["dataset"] != ""
    check(named, f"{file} must say which dataset it is of, else give --dataset", source["dataset"])
    try:
        splits = load(**source)
    except UserError as error:
        told = f"{file} says that it is of {source['dataset']}: {error}; or give --dataset"
        raise error if given else UserError(told) from None
    known = None if given else small.provenance.get("fingerprint")
    if known and known != splits.train.fingerprint and not is_part(str(small.provenance.get("source"))):
        warnings.warn(
            f"the training images of {source['dataset']} are not those that {file} was made from: some of those may be "
            "among the test images now",
            stacklevel=2,
        )
    test, protocol = splits.test, protocol_for(small, splits.test, **fields)
    run.place.reset_peak_memory()
    return _record(source["dataset"], small, score(small, test, protocol, run, f"{file}: testing"), run)


def _origin(small: CondensedSet, file: Path) -> dict[str, Any]:
    """Where the data of a set file are: its run's recipe says it best, its own provenance has the name alone."""
    for folder in (file.parent, file.parent.parent):
        if is_run(folder):
            plan = from_toml(folder / "recipe.toml")
            if plan.fingerprint == small.provenance.get("fingerprint"):
                return {"dataset": plan.dataset, "data_dir": plan.data_dir, "size": plan.size}
    return {"dataset": small.provenance.get("dataset")}


def facts(small: CondensedSet) -> dict[str, Any]:
    """What a set holds and where it came from, for machines: its provenance with all that it says."""
    held = {
        "images": len(small),
        "shape": list(small.images.shape[1:]),
        "classes": small.num_classes,
        "class_names": list(small.class_names),
        "labels": _labels(small),
        "pixel_range": [float(small.images.min()), float(small.images.max())],
        "step_sizes": None if small.step_sizes is None else small.step_sizes.tolist(),
        "mean": list(small.mean),
        "std": list(small.std),
    }
    return {**held, **{key: value for key, value in small.provenance.items() if key not in held}}


def summary(small: CondensedSet) -> dict[str, Any]:
    """What a set holds and where it came from, for a person."""
    about, shape = small.provenance, "x".join(map(str, small.images.shape[1:]))
    steps, told = small.step_sizes, ("dataset", "source", "method", "seed", "seconds", "hardware", "version")
    learned = {} if steps is None else {"step sizes": f"{len(steps)}, {steps.min():.3g} to {steps.max():.3g}"}
    return {
        "images": f"{len(small)} of {shape}, {small.num_classes} classes",
        "labels": _labels(small),
        "pixels": f"{small.images.min():.3g} to {small.images.max():.3g} (0 to 1 nominal)",
        **learned,
        "mean": ", ".join(f"{value:.4g}" for value in small.mean),
        "std": ", ".join(f"{value:.4g}" for value in small.std),
        **{key: about[key] for key in told if about.get(key, "") != ""},
        "recipe": ", ".join(f"{key}={value}" for key, value in about.get("recipe", {}).items()),
    }


def _labels(small: CondensedSet) -> str:
    return "hard" if small.labels.ndim == 1 else "soft"
