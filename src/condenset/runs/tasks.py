"""The tasks of a run: their progress and files on the side of the run, and their context on the side of the worker."""

from __future__ import annotations

import contextlib
import glob
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condenset.engine.defaults import torch_defaults
from condenset.engine.device import ComputeDevice
from condenset.engine.options import EngineOptions
from condenset.engine.tasks import Engine, Files, Task, TaskMonitor, TaskSession, read_files, write_files
from condenset.engine.threads import use_threads
from condenset.io.directories import temporary_directory, wrap_os_errors
from condenset.io.progress import NullProgress, limit_progress, print_notice
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted, track_progress

TASKS = "tasks"  # the directory of a run that has the files of unfinished tasks


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The fields of a run that its tasks need, see `RunContext`."""

    seed: int
    device: str
    precision: str
    threads: int | None
    job: str
    recipe: Mapping[str, Any]
    classes_per_chunk: int | None
    memory_limit: int | None
    num_snapshots: int
    checkpoint_seconds: float

    @classmethod
    def from_run(cls, run: RunContext) -> WorkerSettings:
        """Return the settings for the tasks of a run. Ray decides which GPU a worker has."""
        return cls(
            seed=run.seed,
            device=run.compute.device.type,
            precision=run.compute.precision,
            threads=run.compute.threads,
            job=run.job,
            recipe=dict(run.recipe),
            classes_per_chunk=run.classes_per_chunk,
            memory_limit=run.memory_limit,
            num_snapshots=run.num_snapshots,
            checkpoint_seconds=checkpoint.CHECKPOINT_SECONDS,
        )


def choose_threads(options: EngineOptions, compute: ComputeDevice, threads: int | None = None) -> int | None:
    """Return the CPU threads of a run: those it began with, else the default of the engine. None: no CPU computes."""
    return compute.threads and (threads or options.default_threads or compute.threads)


@contextlib.contextmanager
def open_run_engine(
    options: EngineOptions, compute: ComputeDevice, threads: int | None = None, *, verbose: bool = True
) -> Iterator[Engine | None]:
    """Open the engine of a run, and set the number of CPU threads for the duration of the block.

    Args:
        options: The engine.
        compute: The device of the run.
        threads: The number of threads that the run began with. None: the default of the engine.
        verbose: Say that the engine starts, which takes seconds.
    """
    options.check_installed()
    if options.engine == "ray":
        place = "Starting Ray" if options.address is None else f"Connecting to Ray at {options.address}"
        with limit_progress(verbose):
            print_notice(place)
    threads = choose_threads(options, compute, threads)
    uses_gpu = compute.device.type == "cuda"
    with use_threads(threads), options.open(uses_gpu=uses_gpu, threads=threads) as engine:
        yield engine


@contextlib.contextmanager
def open_worker_run(settings: WorkerSettings, session: TaskSession) -> Iterator[RunContext]:
    """Yield the context of a task: a run in the directory of the task, which reports its progress."""
    compute = ComputeDevice.select(settings.device, settings.precision)
    checkpoint.CHECKPOINT_SECONDS = settings.checkpoint_seconds
    run = RunContext(
        seed=settings.seed,
        compute=compute,
        directory=session.directory,
        job=settings.job,
        recipe=settings.recipe,
        classes_per_chunk=settings.classes_per_chunk,
        memory_limit=settings.memory_limit,
        num_snapshots=settings.num_snapshots,
    )
    run.progress = _SessionProgress(run, session)
    with torch_defaults(), use_threads(settings.threads), compute.activate():
        yield run


class _SessionProgress(NullProgress):
    """Send the progress of a task to the run, and pass a stop request on to the task."""

    def __init__(self, run: RunContext, session: TaskSession) -> None:
        self.run, self.session, self.total, self.fraction = run, session, 0, 0.0

    def start(self, description: str, total: int | None, done: int = 0, *, unit: str = "") -> None:
        self.total = total or 0
        self.update(done)

    def update(self, done: float, note: str = "") -> None:
        self.fraction = min(done / self.total, 1.0) if self.total else 0.0
        self._report()

    def send_files(self) -> None:
        self._report(force=True)

    def _report(self, *, force: bool = False) -> None:
        if self.session.report(self.fraction, force=force):
            self.run.stop.requested = signal.SIGINT


class _RunMonitor(TaskMonitor):
    """Show the progress of all tasks as one, and store their files in the directory of the run."""

    def __init__(self, run: RunContext, tasks: Sequence[Task], directory: Path, total: float, done: float) -> None:
        self.run, self.tasks, self.directory, self.total, self.done = run, tasks, directory, total, done
        self.fractions = [0.0] * len(tasks)
        # Tasks of an interrupted run, whose first fraction contains the steps of their checkpoint
        self.resumed = {index for index, task in enumerate(tasks) if (directory / task.key).exists()}
        self.nodes: dict[int, str] = {}
        self.num_done = 0

    def stop_requested(self) -> bool:
        return bool(self.run.stop.requested)

    def read_files(self, index: int) -> dict[str, bytes]:
        return read_files(self.directory / self.tasks[index].key)

    def write_files(self, index: int, files: Files) -> None:
        self.run.verify_identity()
        directory = self.directory / self.tasks[index].key
        with wrap_os_errors(directory):
            for name in (name for name, content in files.items() if content is not None):
                if name.endswith(checkpoint.CHECKPOINT):  # workers send the last one alone
                    checkpoint.keep_previous(directory / name)
        write_files(directory, files)

    def update(self, fractions: Mapping[int, float]) -> None:
        for index, fraction in fractions.items():
            self._set_fraction(index, fraction)
        self.show()

    def finish(self, index: int) -> None:
        """Count a finished task."""
        self._set_fraction(index, 1.0)
        self.num_done += 1
        self.run.log_event("task", name=self.tasks[index].name, state="finished", node=self.nodes.get(index, ""))
        self.show()

    def _set_fraction(self, index: int, fraction: float) -> None:
        self.fractions[index] = fraction
        if fraction and index in self.resumed:
            self.resumed.remove(index)
            self.run.progress.restart_rate()

    def show(self) -> None:
        """Show the progress of all tasks, weighted by their work."""
        weights = [task.weight for task in self.tasks]
        work = sum(fraction * weight for fraction, weight in zip(self.fractions, weights, strict=True))
        done = self.done + work / sum(weights) * (self.total - self.done)
        self.run.progress.update(done, f"{self.num_done} of {len(self.tasks)} tasks")

    def record_start(self, index: int, node: str) -> None:
        self.nodes[index] = node
        self.run.log_event("task", name=self.tasks[index].name, state="started", node=node)

    def record_failure(self, index: int, node: str, reason: str) -> None:
        self.run.log_event("task", name=self.tasks[index].name, state="failed", node=node, reason=reason)


def run_tasks(
    run: RunContext, tasks: Sequence[Task], description: str, total: int, done: int = 0
) -> Iterator[tuple[int, Path, Any]]:
    """Run tasks on the engine of a run; yield index, directory and result of each in order of completion.

    The directory has the files that the task wrote. It stays until `remove_task_files` removes it.

    Args:
        run: The run.
        tasks: The tasks.
        description: The label of the progress display.
        total: The steps that the display counts for all tasks together.
        done: The steps of `total` that were done before, by tasks of an interrupted run.

    Raises:
        Interrupted: If the user asks to stop.
        UserError: If a task fails several times.
    """
    assert run.engine is not None
    if not tasks:
        return
    with contextlib.ExitStack() as stack:
        directory = task_directory(run)
        if directory is None:
            directory = stack.enter_context(temporary_directory("condenset-run"))
        monitor = _RunMonitor(run, tasks, directory, total, done)
        stack.enter_context(track_progress(run, description, total, done))
        for index, result in run.engine.run(tasks, monitor):
            monitor.finish(index)
            yield index, directory / tasks[index].key, result
        if run.stop.requested:
            raise Interrupted


def task_directory(run: RunContext) -> Path | None:
    """Return where a run has the files of its tasks, or None without a directory."""
    return run.directory / TASKS if run.directory else None


def remove_task_files(run: RunContext, prefix: str) -> None:
    """Remove the files of tasks whose keys begin with `prefix`, after their results have been saved elsewhere."""
    if directory := task_directory(run):
        run.verify_identity()
        for path in directory.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it does not exist, or other tasks have files in it
            directory.rmdir()
