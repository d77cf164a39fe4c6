"""Train and test the networks of evaluations as tasks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from condenset.data.transfer import DataSender, open_shared
from condenset.engine.tasks import SharedValue, Task, TaskSession
from condenset.io.files import json_hash
from condenset.runs.context import RunContext
from condenset.runs.tasks import WorkerSettings, open_worker_run, remove_task_files, run_tasks
from condenset.training.evaluation import Evaluation
from condenset.training.parallel import num_networks_per_task, num_parallel, remaining_groups
from condenset.training.protocol import Protocol


def run_on_engine(evaluations: Sequence[tuple[Evaluation, Protocol]], run: RunContext, description: str) -> None:
    """Train and test the remaining networks of evaluations, all at the same time.

    Their events are logged in the directories of the runs of the evaluations.

    Args:
        evaluations: The evaluations, and the protocols that they were made with.
        run: The run that the tasks belong to.
        description: The label of the progress display.
    """
    senders: dict[int, DataSender] = {}  # several evaluations can have the same images
    num_networks = sum(evaluation.protocol.num_networks for evaluation, _ in evaluations)
    work = [
        (evaluation, _make_task(evaluation, protocol, nets, run, senders))
        for evaluation, protocol in evaluations
        for nets in _split_networks(evaluation, num_networks, run)
    ]
    work.sort(key=lambda pair: -pair[1].weight)  # a long task at the end would leave other workers idle
    tasks = [task for _, task in work]
    total = sum(evaluation.protocol.num_networks * evaluation.num_steps for evaluation, _ in evaluations)
    done = sum(evaluation.num_steps_done for evaluation, _ in evaluations)
    for index, _, events in run_tasks(run, tasks, description, total, done):
        evaluation, task = work[index]
        for event in events:
            evaluation.run.copy_event(event)
            evaluation.record(event)
        remove_task_files(run, task.key)
    for evaluation, _ in evaluations:  # other groups, if an interrupted run had another number of workers
        remove_task_files(run, _key_prefix(evaluation))


def _split_networks(evaluation: Evaluation, num_networks: int, run: RunContext) -> list[list[int]]:
    """Return the remaining networks of an evaluation in groups, one per task.

    Args:
        evaluation: The evaluation.
        num_networks: The networks of all evaluations, also finished ones, so that a resumed run has the same groups.
        run: The run that the tasks belong to.
    """
    assert run.engine is not None
    at_once = num_parallel(evaluation.protocol, evaluation.train_source, evaluation.compute)
    group_size = num_networks_per_task(num_networks, run.engine, at_once)
    return remaining_groups(evaluation.protocol.num_networks, group_size, evaluation.remaining)


def _make_task(
    evaluation: Evaluation,
    protocol: Protocol,
    nets: Sequence[int],
    run: RunContext,
    senders: dict[int, DataSender],
) -> Task:
    """Return the task that trains and tests some networks of an evaluation."""
    assert run.engine is not None
    key, settings = f"{_key_prefix(evaluation)}{nets[0]:04d}", WorkerSettings.from_run(evaluation.run)
    for images in (evaluation.train_source, evaluation.test_source):
        senders.setdefault(id(images), DataSender(images, run.engine))
    train, test = senders[id(evaluation.train_source)], senders[id(evaluation.test_source)]
    return Task(
        key=key,
        name=f"{evaluation.run.job or 'evaluation'}: networks {nets[0]} to {nets[-1]}",
        function=evaluate_networks,
        make_arguments=lambda: (settings, train.send(), test.send(), protocol, nets),
        weight=len(nets) * max(1, evaluation.num_steps),
    )


def _key_prefix(evaluation: Evaluation) -> str:
    """Return the beginning of the keys of the tasks of an evaluation. Jobs can have equal sets."""
    return f"evaluation-{json_hash([evaluation.run.job, evaluation.settings])[:12]}."


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
