"""A whole run: condense, score, picture, in one directory that can be stopped and gone on with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from condenset.errors import UserError
from condenset.evaluation import protocol_for, score
from condenset.files import write_file
from condenset.methods import METHODS
from condenset.plans import WHOLE, Job, Plan
from condenset.report.grid import save_grid
from condenset.runs import Run, writable
from condenset.types import CondensedSet, Scores, Splits


def execute(plan: Plan, splits: Splits, run: Run) -> list[dict[str, Any]]:
    """Do every job that is not done yet; give the records of all, which results.json holds too."""
    records: list[dict[str, Any]] = []
    done = {(record["method"], record["ipc"]): record for record in read_results(run.folder)}
    for job in plan.jobs:
        record = done.get((job.method, job.ipc)) or _do(plan, job, splits, run)
        records.append(record)
        if run.folder and plan.protocol:
            with writable(run.folder):
                write_file(run.folder / "results.json", json.dumps(records, indent=1).encode() + b"\n")
    if run.folder:
        _picture(plan, run.folder)
    return records


def _do(plan: Plan, job: Job, splits: Splits, run: Run) -> dict[str, Any]:
    run.job = job.name
    if job.recipe is None:
        assert plan.whole is not None
        run.place.reset_peak_memory()
        return _record(plan.dataset, None, score(splits.train, splits.test, plan.whole, run, "whole dataset"), run)
    small = _condensed(plan, job, splits, run)
    scores = score(small, splits.test, plan.protocol, run, f"{job.name}: testing") if plan.protocol else None
    return _record(plan.dataset, small, scores, run)


def _condensed(plan: Plan, job: Job, splits: Splits, run: Run) -> CondensedSet:
    """The job's set: read if it is there, else made and saved."""
    path = plan.set_path(job, run.folder) if run.folder else None
    if path and path.exists():
        return CondensedSet.load(path)
    assert job.recipe is not None
    run.recipe = dataclasses.asdict(job.recipe) | {"method": job.method, "fingerprint": plan.fingerprint}
    run.seconds_before = 0.0
    small = METHODS[job.method](splits.train, job.recipe, run)
    if path:
        with writable(path):
            small.save(path)
        run.drop_checkpoint()
    return small


def _record(dataset: str, small: CondensedSet | None, scores: Scores | None, run: Run) -> dict[str, Any]:
    """One row of results.json; without a set it is the whole dataset's."""
    about: Mapping[str, Any] = small.provenance if small else {"method": WHOLE, "seconds": 0.0}
    recipe = about.get("recipe", {})
    record: dict[str, Any] = {
        "dataset": dataset,
        "method": about.get("method"),
        "ipc": recipe.get("ipc"),
        "seed": run.seed,
        "network": scores.protocol["network"] if scores else recipe.get("network"),
    }
    if scores:
        record |= {
            "accuracy_mean": scores.mean,
            "accuracy_std": scores.std,
            "accuracies": list(scores.accuracies),
            "evaluate_seconds": round(scores.seconds, 3),
        }
    return record | {
        "condense_seconds": about.get("seconds"),
        "peak_memory_bytes": about.get("peak_memory_bytes", run.place.peak_memory()),
        "iterations": recipe.get("iterations", 0),
        "device": str(run.place.device),
        "version": version("condenset"),
    }


def _picture(plan: Plan, folder: Path) -> None:
    """grid.png: the sets that were learned (or chosen, where none was), side by side."""
    shown = [job for job in plan.made if job.method != "random"] or plan.made
    with writable(folder):
        save_grid([CondensedSet.load(plan.set_path(job, folder)) for job in shown], folder / "grid.png")


def read_results(folder: Path | None) -> list[dict[str, Any]]:
    """The records of the jobs that are done."""
    path = folder / "results.json" if folder else None
    if path is None or not path.exists():
        return []
    try:
        records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        _ = [(record["method"], record["ipc"]) for record in records]
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is not a list of results; move it away") from None
    return records


def find_set(path: Path) -> tuple[CondensedSet, Path]:
    """A set file, or the one in the folder of a run."""
    file = path / "condensed.safetensors" if path.is_dir() else path
    return CondensedSet.load(file), file


def evaluate_file(
    path: Path, run: Run, load: Callable[[str], Splits], dataset: str | None, fields: dict[str, Any]
) -> dict[str, Any]:
    """Score a set file on the test images of its own dataset, or of the one given; a record like a run's."""
    small, file = find_set(path)
    dataset = dataset or small.provenance.get("dataset")
    if not dataset:
        raise UserError(f"{file} does not say which dataset it is of: give --dataset")
    test = load(dataset).test
    run.place.reset_peak_memory()
    return _record(dataset, small, score(small, test, protocol_for(small, test, **fields), run, file.name), run)


def summary(small: CondensedSet) -> dict[str, Any]:
    """What a set holds and where it came from, for a person."""
    about, shape = small.provenance, "x".join(map(str, small.images.shape[1:]))
    return {
        "images": f"{len(small)} of {shape}, {small.num_classes} classes",
        "labels": "hard" if small.labels.ndim == 1 else "soft",
        "pixels": f"{small.images.min():.3g} to {small.images.max():.3g} (0 to 1 nominal)",
        "mean": ", ".join(f"{value:.4g}" for value in small.mean),
        "std": ", ".join(f"{value:.4g}" for value in small.std),
        **{key: about[key] for key in ("dataset", "method", "seed", "seconds", "hardware", "version") if key in about},
        "recipe": ", ".join(f"{key}={value}" for key, value in about.get("recipe", {}).items()),
    }
