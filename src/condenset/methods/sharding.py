"""Condense on an engine: divide the classes among workers, and join what they return.

Random numbers depend on (seed, step, class) alone. So workers exchange nothing, and the set is that of one process.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.data.transfer import DataSender, open_shared
from condenset.engine.tasks import Engine, SharedValue, Task, TaskSession
from condenset.errors import UserError, is_number, option
from condenset.io.directories import temporary_directory, wrap_os_errors
from condenset.io.files import write_file
from condenset.io.metadata import read_json
from condenset.methods.common import recipe_provenance
from condenset.methods.make_sets import make_sets
from condenset.methods.recipe import Recipe
from condenset.methods.registry import SharedNetworks, method_of
from condenset.runs.context import RunContext
from condenset.runs.events import EVENTS, iter_events
from condenset.runs.snapshots import join_snapshots
from condenset.runs.tasks import WorkerSettings, open_worker_run, remove_task_files, run_tasks, task_directory

LARGEST_SHARD, SMALLEST_SHARD = 2, 16  # parts of the classes that a worker would have
MAX_NAMES = 3  # of sets that the progress display lists
STEPS_SHOWN = 1000  # of the progress display


@dataclass(frozen=True, kw_only=True)
class CondenseJob:
    """One set to condense, or several that are learned at once.

    Attributes:
        recipes: Their recipes, which differ in size alone.
        data: The training images.
        run: The run, with the name, the seed and the checkpoint recipe of the job.
    """

    recipes: Sequence[Recipe]
    data: ImageData
    run: RunContext


def check_divisible(recipe: Recipe | None) -> None:
    """Raise a UserError if the classes of a recipe cannot be divided among workers."""
    if recipe is None:
        return
    method = method_of(recipe)
    if reason := method.class_dependence(recipe):
        raise UserError(
            f"{method.name} cannot be divided among workers, because {reason}: use {option('engine', 'local')}, or "
            "another method or network"
        )


def condense_jobs(jobs: Sequence[CondenseJob], run: RunContext) -> Iterator[tuple[int, list[CondensedSet]]]:
    """Condense on the engine of a run; yield the index and the sets of each job in order of completion.

    Jobs whose classes depend on each other are one task each.
    """
    engine = run.engine
    assert engine is not None
    with contextlib.ExitStack() as stack:
        if run.directory is None:  # files of tasks and networks are needed until the jobs are done
            directory = stack.enter_context(temporary_directory("condenset-run"))
            run = run.derive(directory=directory)
            jobs = [dataclasses.replace(job, run=job.run.derive(directory=directory)) for job in jobs]
        divided = [DividedJob(job, run, engine) for job in jobs]
        yield from ((number, job.join()) for number, job in enumerate(divided) if job.is_complete)
        owners = [(number, index) for number, job in enumerate(divided) for index in job.missing]
        tasks = [divided[number].make_task(index) for number, index in owners]
        names = ", ".join(job.run.job or method_of(job.recipes[0]).name for job in jobs)
        names = names if len(jobs) <= MAX_NAMES else f"{len(jobs)} sets"
        remaining = collections.Counter(number for number, _ in owners)
        num_classes = max(1, sum(job.data.num_classes for job in jobs))
        done = STEPS_SHOWN - round(STEPS_SHOWN * sum(task.weight for task in tasks) / num_classes)
        for index, _, _ in run_tasks(run, tasks, f"{names} on {engine.name}", STEPS_SHOWN, done):
            number = owners[index][0]
            remaining[number] -= 1
            if not remaining[number]:
                yield number, divided[number].join()


def remove_shards(job: str, run: RunContext) -> None:
    """Remove the files of the tasks of a job, given by its name, after its sets have been saved."""
    directory = task_directory(run)
    if directory is None:
        return
    key = job_key(job)
    (directory / f"{key}.json").unlink(missing_ok=True)
    remove_task_files(run, f"{key}.")


class DividedJob:
    """A job whose classes are divided into shards.

    Args:
        job: The job.
        run: The run that the tasks belong to.
        engine: The engine that runs them.

    Attributes:
        missing: The shards that are not condensed yet.
    """

    def __init__(self, job: CondenseJob, run: RunContext, engine: Engine) -> None:
        directory = task_directory(run)
        assert directory is not None
        self.job, self.run, self.directory, self.engine = job, run, directory, engine
        self.method = method_of(job.recipes[0])
        self.shards = self._read_or_write_division()
        self.missing = [index for index in range(len(self.shards)) if not all(map(Path.exists, self._paths(index)))]
        self.networks: SharedNetworks | None = None
        if self.missing:
            self.networks = self.method.prepare(job.data, job.recipes[0], job.run)
            self.sender = DataSender(job.data, engine)

    @property
    def is_complete(self) -> bool:
        """Whether all shards were condensed before."""
        return not self.missing

    def _read_or_write_division(self) -> list[range]:
        """Return the classes of each shard. A resumed run has the same shards, whatever the number of workers."""
        path = self.directory / f"{job_key(self.job.run.job)}.json"
        settings = json.loads(json.dumps({"recipe": dict(self.job.run.recipe), "seed": self.job.run.seed}))
        if path.exists():
            hint = "delete it to restart this job"
            stored = read_json(path, "a division into shards", hint=hint, is_valid=_is_division)
            if stored["settings"] != settings:
                raise UserError(f"{path} belongs to another recipe; {hint}")
            return [range(start, stop) for start, stop in stored["shards"]]
        remove_shards(self.job.run.job, self.run)  # their recipe and classes are unknown without the file
        shards = divide_classes(self.job, self.engine.num_workers())
        content = {"settings": settings, "shards": [[shard.start, shard.stop] for shard in shards]}
        with wrap_os_errors(path):
            write_file(path, json.dumps(content).encode())
        return shards

    def _key(self, index: int) -> str:
        return f"{job_key(self.job.run.job)}.{index:05d}"

    def _paths(self, index: int) -> list[Path]:
        return [self.directory / self._key(index) / _set_name(number) for number in range(len(self.job.recipes))]

    def make_task(self, index: int) -> Task:
        """Return the task that condenses a shard."""
        job, shard = self.job, self.shards[index]
        settings = WorkerSettings.from_run(job.run)

        def make_arguments() -> tuple[Any, ...]:
            images = self.sender.send(shard)
            return settings, tuple(job.recipes), images, self.networks

        return Task(
            key=self._key(index),
            name=f"{job.run.job or self.method.name}: {describe_classes(job.data, shard)}",
            function=condense_shard,
            make_arguments=make_arguments,
            weight=len(shard),
        )

    def join(self) -> list[CondensedSet]:
        """Return the sets, with the classes of all shards in their order. Store the losses and snapshots of the job."""
        self._log_losses()
        directories, sets = [self.directory / self._key(index) for index in range(len(self.shards))], []
        for number in range(len(self.job.recipes)):
            parts = [CondensedSet.load(directory / _set_name(number)) for directory in directories]
            sets.append(self._join_set(number, parts))
            if self.job.run.directory is not None:
                self.job.run.verify_identity()
                join_snapshots(self.job.run.directory, sets[-1], list(zip(directories, parts, strict=True)))
        return sets

    def _log_losses(self) -> None:
        """Log the sum of the losses of all shards, at the iterations that each of them logged."""
        logs = [iter_events(self.directory / self._key(index) / EVENTS) for index in range(len(self.shards))]
        shards = [{event["step"]: event for event in log if _is_step(event)} for log in logs]
        for step in sorted(set.intersection(*(set(shard) for shard in shards))):
            losses, seconds = zip(*((shard[step]["loss"], shard[step]["seconds"]) for shard in shards), strict=True)
            self.job.run.log_event("step", step=step, loss=sum(losses), seconds=round(sum(seconds), 3))

    def _join_set(self, number: int, parts: Sequence[CondensedSet]) -> CondensedSet:
        recipe, data = self.job.recipes[number], self.job.data
        provenance = {
            **parts[0].provenance,
            **recipe_provenance(recipe),
            "seconds": round(sum(part.provenance["seconds"] for part in parts), 3),
            "peak_memory_bytes": max(part.provenance["peak_memory_bytes"] for part in parts),
            "engine": self.engine.name,
            "shards": len(parts),
        }
        if len(parts) == 1:
            return dataclasses.replace(parts[0], provenance=provenance)
        labels = [part.stored_labels + shard.start for part, shard in zip(parts, self.shards, strict=True)]
        return CondensedSet.decode(
            torch.cat([part.stored_images for part in parts]),
            labels=torch.cat(labels),
            partition=parts[0].partition,
            decoder=parts[0].decoder,
            class_names=data.class_names,
            mean=data.mean,
            std=data.std,
            whitening=data.whitening,
            provenance=provenance,
        )


def divide_classes(job: CondenseJob, num_workers: int) -> list[range]:
    """Return the classes of each shard: several shards per worker, or one if the classes depend on each other."""
    num_classes = job.data.num_classes
    if any(method_of(recipe).class_dependence(recipe) for recipe in job.recipes) or job.data.whole:
        return [range(num_classes)]
    return split_shards(num_classes, num_workers, job.run.classes_per_chunk or 1)


def split_shards(num_classes: int, num_workers: int, chunk: int = 1) -> list[range]:
    """Split classes into shards that become smaller, so that workers of different speed end at about the same time.

    A shard has half of a worker's share of the classes that remain. The last ones have a sixteenth of a worker's share
    of all classes, since the start of a shard takes time. See docs/concepts/scale.md for other divisions.

    Args:
        num_classes: Number of classes.
        num_workers: Number of workers.
        chunk: A shard has whole chunks of so many classes, for the same rounding as in one process.
    """
    remaining, sizes = -(-num_classes // chunk), list[int]()
    smallest = max(1, remaining // (SMALLEST_SHARD * num_workers))
    while remaining:
        sizes.append(min(remaining, max(smallest, remaining // (LARGEST_SHARD * num_workers))))
        remaining -= sizes[-1]
    edges = list(itertools.accumulate(sizes, initial=0))
    return [range(chunk * start, min(chunk * stop, num_classes)) for start, stop in itertools.pairwise(edges)]


def describe_classes(data: ImageData, classes: range) -> str:
    """Return the numbers and names of classes for messages."""
    first, last = data.class_names[classes.start], data.class_names[classes.stop - 1]
    if len(classes) == 1:
        return f"class {classes.start} ({first!r})"
    return f"classes {classes.start} to {classes.stop - 1} ({first!r} to {last!r})"


def condense_shard(
    session: TaskSession,
    settings: WorkerSettings,
    recipes: Sequence[Any],
    images: SharedValue,
    networks: SharedNetworks | None,
) -> None:
    """Condense a shard in a worker, and save its sets in the directory of the task."""
    with (
        temporary_directory("condenset-pool") as directory,
        open_worker_run(settings, session) as run,
    ):
        if networks is not None:
            recipes = [networks.install(recipe, directory) for recipe in recipes]
        data = open_shared(images)
        for number, condensed in enumerate(make_sets(method_of(recipes[0]), data, recipes, run)):
            condensed.save(session.directory / _set_name(number), overwrite=True)
        run.delete_checkpoint()


def _set_name(number: int) -> str:
    return f"set-{number}.safetensors"


def job_key(job: str) -> str:
    """Return the name that the files of a divided job begin with."""
    return job.replace("/", "-") or "condense"


def _is_step(event: Mapping[str, Any]) -> bool:
    is_step = event.get("event") == "step" and type(event.get("step")) is int
    return is_step and is_number(event.get("loss")) and is_number(event.get("seconds"))


def _is_division(content: Any) -> bool:
    return isinstance(content, dict) and "settings" in content and isinstance(content.get("shards"), list)
