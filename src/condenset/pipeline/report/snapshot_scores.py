"""Score the snapshots of a run, for the curve of accuracy in its report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import Splits
from condenset.data.transform import to_unit_range
from condenset.engine.device import ComputeDevice
from condenset.errors import UserError, is_int, is_number, option_name
from condenset.io.directories import lock_directory, wrap_os_errors
from condenset.io.files import write_file
from condenset.io.metadata import check_run_exists, read_json
from condenset.io.progress import NullProgress
from condenset.pipeline.config import read_plan
from condenset.pipeline.plan import Plan
from condenset.pipeline.results import Record
from condenset.runs.context import RunContext
from condenset.runs.events import is_fraction
from condenset.runs.snapshots import SNAPSHOTS, Snapshot, read_snapshots
from condenset.training.scoring import score_set

SCORES = f"{SNAPSHOTS}/scores.json"


def read_snapshot_plan(directory: Path) -> Plan:
    """Return the plan of a run whose snapshots can be scored.

    Raises:
        UserError: The directory is not that of a run, or the run has no snapshots or does not score its sets.
    """
    check_run_exists(directory)
    if not any((directory / SNAPSHOTS).glob("*/*.safetensors")):
        condition = "a run that learns images, with --snapshots 1 or more"
        raise UserError(f"{directory} has no snapshots: {option_name('num_networks')} needs {condition}")
    plan = read_plan(directory / "recipe.toml")
    if plan.protocol is None:
        raise UserError(f"{directory} does not score its sets, so that its snapshots have no protocol")
    return plan


def score_snapshots(directory: Path, plan: Plan, splits: Splits, num_networks: int, progress: NullProgress) -> None:
    """Train networks on the images of every snapshot that has no score yet, and store the accuracies.

    Args:
        directory: The directory of the run.
        plan: Its plan, from `read_snapshot_plan`.
        splits: The images of the run.
        num_networks: Networks to train on each snapshot.
        progress: The progress display.

    Raises:
        UserError: Networks cannot train on any snapshot.
    """
    assert plan.protocol is not None, "read_snapshot_plan checks it"
    compute = ComputeDevice.select(plan.device, plan.precision)
    run = RunContext(seed=plan.seed, compute=compute, progress=progress)
    protocol = dataclasses.replace(plan.protocol, num_networks=num_networks)
    with lock_directory(directory):
        scores = read_snapshot_scores(directory)
        scored = {(entry["job"], entry["step"]) for entry in scores if entry["networks"] >= num_networks}
        usable, problems = _read_usable_snapshots(plan, directory)
        if not usable:
            raise UserError(f"the snapshots of {directory} cannot be scored: {'; '.join(problems)}")
        missing = [entry for entry in usable if (entry[0], entry[1].step) not in scored]
        for number, (job, snapshot, final) in enumerate(missing, start=1):
            progress.job_label = f"{number}/{len(missing)}"
            images = to_unit_range(snapshot.images[snapshot.indices.argsort()])
            condensed = dataclasses.replace(final, images=images, compact=None, partition=1, step_sizes=None)
            accuracy = score_set(condensed, splits.require_test(), protocol, run, f"{job}, {snapshot.step}").mean
            scores = [entry for entry in scores if (entry["job"], entry["step"]) != (job, snapshot.step)]
            fields = {"step": snapshot.step, "seconds": snapshot.seconds, "accuracy": accuracy}
            scores.append({"job": job, **fields, "networks": num_networks})
            with wrap_os_errors(directory / SCORES):
                write_file(directory / SCORES, json.dumps(scores, indent=1).encode() + b"\n")


def read_snapshot_scores(directory: Path) -> list[Record]:
    """Return the stored scores of snapshots: `job`, `step`, `seconds`, `accuracy` and `networks`."""
    path = directory / SCORES
    if not path.exists():
        return []
    scores: list[Record] = read_json(path, "a list of scores of snapshots", hint="delete it", is_valid=_are_scores)
    return scores


def _are_scores(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("job"), str)
        and is_int(entry.get("step"))
        and is_int(entry.get("networks"))
        and is_number(entry.get("seconds"))
        and is_fraction(entry.get("accuracy"))
        for entry in value
    )


def _read_usable_snapshots(plan: Plan, directory: Path) -> tuple[list[tuple[str, Snapshot, CondensedSet]], list[str]]:
    """Return the job, the snapshot and its set for all snapshots that networks can train on; why not on the others."""
    usable, problems = list[tuple[str, Snapshot, CondensedSet]](), list[str]()
    for job in plan.condense_jobs:
        path = plan.set_path(job, directory)
        if not path.exists():
            problems.append(f"{path} does not exist")
            continue
        condensed = CondensedSet.load(path)
        for snapshot in read_snapshots(directory, condensed):
            if problem := snapshot.find_problem(condensed):
                problems.append(problem)
            else:
                usable.append((job.name, snapshot, condensed))
    return usable, list(dict.fromkeys(problems))
