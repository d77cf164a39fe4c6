"""Train the networks of a ranking as tasks of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from condenset.data.transfer import DataSender, open_shared
from condenset.engine.tasks import Engine, SharedValue, Task, TaskSession
from condenset.io.files import json_hash
from condenset.runs.loop import track_progress
from condenset.runs.tasks import WorkerSettings, open_worker_run, remove_task_files, run_tasks
from condenset.search.ranker import Ranker
from condenset.training.protocol import Protocol


def rank_on_engine(ranker: Ranker, engine: Engine, description: str) -> None:
    """Train the missing networks of all built-in architectures, and log their events in the directory of the run.

    Args:
        ranker: The ranking. Networks of users remain, because workers do not have them.
        engine: The engine of the run.
        description: The label of the progress display.
    """
    run, settings = ranker.run, WorkerSettings.from_run(ranker.run)
    train = DataSender(ranker.train_source, engine)
    tests = {name: DataSender(images, engine) for name, images in ranker.eval_sources.items()}

    def make_task(specs: dict[str, str]) -> Task:
        key = f"ranking-{json_hash([ranker.settings, specs])[:12]}"

        def make_arguments() -> tuple[Any, ...]:
            test_sets = {name: sender.send() for name, sender in tests.items()}
            return settings, train.send(), test_sets, ranker.protocol, specs

        name = f"architecture {next(iter(specs))}"
        return Task(key=key, name=name, function=rank_group, make_arguments=make_arguments, weight=len(specs))

    groups = [[name for name in group if ranker.missing(name)] for group in ranker.groups()]
    groups = [group for group in groups if group and not ranker.is_user_network(group[0])]
    tasks = [make_task({name: ranker.specs[name] for name in group}) for group in groups]
    num_networks = ranker.protocol.num_networks
    for index, _, result in run_tasks(run, tasks, description, sum(map(len, groups)) * num_networks):
        _record(ranker, *result)
        remove_task_files(run, tasks[index].key)


def rank_group(
    session: TaskSession,
    settings: WorkerSettings,
    train_set: SharedValue,
    test_sets: Mapping[str, SharedValue],
    protocol: Protocol,
    specs: Mapping[str, str],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Train networks in a worker; return their events, and why architectures could not be trained."""
    with open_worker_run(settings, session) as run:
        eval_sets = {name: open_shared(images) for name, images in test_sets.items()}
        ranker = Ranker(specs, open_shared(train_set), eval_sets, protocol, run)
        with track_progress(run, "ranking architectures", len(specs) * protocol.num_networks, ranker.num_done):
            ranker.train_all()
        return run.network_events(settings=ranker.settings) + run.read_events("failed"), ranker.reasons


def _record(ranker: Ranker, events: list[dict[str, Any]], reasons: dict[str, str]) -> None:
    """Add the results of a worker to a ranking."""
    for event in events:
        ranker.run.copy_event(event)
        if event["event"] == "network":
            ranker.accuracies[event["name"]][event["net"]] = event["accuracies"]
            ranker.seconds[event["name"]] += event["seconds"]
    ranker.reasons |= reasons
