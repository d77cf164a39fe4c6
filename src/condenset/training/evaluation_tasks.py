"""Train and test the networks of an evaluation as tasks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from condenset.data.transfer import ImageSender, make_sender, open_shared
from condenset.engine.memory import remaining_groups
from condenset.engine.tasks import Engine, SharedValue, Task, TaskSession
from condenset.runs.tasks import WorkerSettings, open_worker_run, remove_task_files, run_tasks
from condenset.training.network_scoring import Evaluation
from condenset.training.parallel import num_networks_per_task, num_parallel
from condenset.training.protocol import Protocol


def run_on_engine(evaluation: Evaluation, protocol: Protocol, engine: Engine, description: str) -> None:
    """Train and test the remaining networks of an evaluation, and log their events in the directory of its run.

    Args:
        evaluation: The evaluation.
        protocol: The protocol that it was made with.
        engine: The engine of the run.
        description: The label of the progress display.
    """
    run, remaining = evaluation.run, evaluation.remaining
    group_size = num_parallel(evaluation.protocol, evaluation.train_source, evaluation.compute)
    group_size = num_networks_per_task(len(remaining), engine, group_size)
    groups = remaining_groups(evaluation.protocol.num_networks, group_size, remaining)
    settings = WorkerSettings.from_run(run)
    train, test = make_sender(evaluation.train_source, engine), ImageSender(evaluation.test_source, engine)

    def make_task(nets: list[int]) -> Task:
        return Task(
            key=f"evaluation-{evaluation.settings[:12]}.{nets[0]:04d}",
            name=f"{run.job or 'evaluation'}: networks {nets[0]} to {nets[-1]}",
            function=evaluate_networks,
            make_arguments=lambda: (settings, train.send(nets[0]), test.send(nets[0]), protocol, nets),
            weight=len(nets),
        )

    tasks = [make_task(nets) for nets in groups]
    for index, _, events in run_tasks(run, tasks, description, len(remaining) * evaluation.num_steps):
        for event in events:
            run.copy_event(event)
            evaluation.record(event)
        remove_task_files(run, [tasks[index].key])


def evaluate_networks(
    session: TaskSession,
    settings: WorkerSettings,
    train_set: SharedValue,
    test_set: SharedValue,
    protocol: Protocol,
    nets: Sequence[int],
) -> list[dict[str, Any]]:
    """Train and test networks in a worker, and return their events."""
    with open_worker_run(settings, session) as run:
        evaluation = Evaluation(open_shared(train_set), open_shared(test_set), protocol, run)
        evaluation.run_all([net for net in nets if net in evaluation.remaining], "training networks")
        return [event for event in run.network_events(settings=evaluation.settings) if event["net"] in nets]
