"""Train the networks of a pool as tasks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from condenset.data.image_data import ImageData
from condenset.data.transfer import DataSender, open_shared
from condenset.engine.tasks import SharedValue, Task, TaskSession
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.methods.pools.network_training import PoolSpec, network_path, train_networks
from condenset.runs.context import RunContext
from condenset.runs.tasks import WorkerSettings, open_worker_run, remove_task_files, run_tasks
from condenset.training.parallel import num_networks_per_task, num_parallel, remaining_groups


def train_on_engine(
    data: ImageData,
    directory: Path,
    spec: PoolSpec,
    missing: Sequence[int],
    run: RunContext,
) -> None:
    """Train the missing networks as tasks of the engine of a run, and store their files in the pool."""
    assert run.engine is not None
    num_networks, at_once = spec.num_networks, num_parallel(spec.protocol, data, run.compute)
    groups = remaining_groups(num_networks, num_networks_per_task(num_networks, run.engine, at_once), missing)
    settings, sender, prefix = (
        WorkerSettings.from_run(run),
        DataSender(data, run.engine),
        f"pool-{spec.pool_hash[:12]}.",
    )

    def make_task(numbers: list[int]) -> Task:
        return Task(
            key=f"{prefix}{numbers[0]:04d}",
            name=f"networks {numbers[0]} to {numbers[-1]} of a pool",
            function=train_pool_networks,
            make_arguments=lambda: (settings, sender.send(), spec, numbers),
            weight=len(numbers),
        )

    tasks = [make_task(numbers) for numbers in groups]
    done = num_networks - len(missing)
    for index, task_directory, _ in run_tasks(run, tasks, "training a pool of networks", num_networks, done):
        with wrap_os_errors(directory):
            for number in groups[index]:
                trained = network_path(task_directory, number)
                write_file(network_path(directory, number), trained.read_bytes())
        remove_task_files(run, tasks[index].key)
    remove_task_files(run, prefix)  # of other groups, if an interrupted run had another number of workers


def train_pool_networks(
    session: TaskSession,
    settings: WorkerSettings,
    images: SharedValue,
    spec: PoolSpec,
    numbers: Sequence[int],
) -> None:
    """Train networks of a pool in a worker, and store them in the directory of the task."""
    directory, data = session.directory, open_shared(images)
    missing = [number for number in numbers if not network_path(directory, number).exists()]
    if missing:
        with open_worker_run(settings, session) as run:
            train_networks(data, directory, spec, missing, run, num_shown=len(numbers))
