"""Tasks on a real cluster: results, failures of workers and nodes, stop requests."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from condenset import UserError
from condenset.engine.ray_tasks import RayEngine, StoredValue, open_ray
from condenset.engine.tasks import Task
from helpers.cluster_tasks import (
    NUM_STEPS,
    DirectoryMonitor,
    add,
    count_slowly,
    fail_at_first,
    kill_last_process,
    logged_steps,
    sum_array,
    wait_for,
)


def counting_task(log: Path) -> Task:
    return Task(key="count", name="the counter", function=count_slowly, make_arguments=lambda: (log,))


def test_every_task_returns_its_result_once(engine: RayEngine, tmp_path: Path) -> None:
    tasks = [
        Task(key=str(number), name=str(number), function=add, make_arguments=lambda number=number: (number, 1))
        for number in range(7)
    ]
    assert sorted(engine.run(tasks, DirectoryMonitor(tmp_path))) == [(number, number + 1) for number in range(7)]


def test_waiting_task_keeps_its_cpu(engine: RayEngine, tmp_path: Path) -> None:
    @ray.remote(num_cpus=0)
    def sleep() -> None:
        time.sleep(1)

    def make_arguments() -> tuple[StoredValue]:
        return (StoredValue(sleep.remote()),)

    tasks = [
        Task(key=str(number), name=str(number), function=wait_for, make_arguments=make_arguments)
        for number in range(4)  # two per node
    ]
    spans: dict[str, list[tuple[float, float]]] = {}
    for _, (node, began, ended) in engine.run(tasks, DirectoryMonitor(tmp_path)):
        spans.setdefault(node, []).append((began, ended))
    for node_spans in spans.values():
        assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(sorted(node_spans)))


def test_task_that_fails_twice_starts_again(engine: RayEngine, tmp_path: Path) -> None:
    log, monitor = tmp_path / "log", DirectoryMonitor(tmp_path)
    task = Task(key="a", name="a", function=fail_at_first, make_arguments=lambda: (log, 2))
    assert list(engine.run([task], monitor)) == [(0, 3)]
    assert monitor.failures == ["RuntimeError: the sky fell"] * 2


def test_task_that_fails_three_times_stops_with_name_node_and_reason(engine: RayEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tasks = [
        Task(key="a", name="the sum", function=add, make_arguments=lambda: (1, 2)),
        Task(key="b", name="class 4 ('deer')", function=fail_at_first, make_arguments=lambda: (log, 3)),
    ]
    results = []
    node = ray.util.get_node_ip_address()
    message = rf"class 4 \('deer'\) failed 3 times, the last time on node {node}: RuntimeError: the sky fell"
    with pytest.raises(UserError, match=message):
        results.extend(engine.run(tasks, DirectoryMonitor(tmp_path)))
    assert len(log.read_text().splitlines()) == 3


def test_killed_worker_continues_from_its_files(engine: RayEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monitor = DirectoryMonitor(tmp_path, 0.3, lambda: kill_last_process(log))
    assert list(engine.run([counting_task(log)], monitor)) == [(0, NUM_STEPS)]
    steps = logged_steps(log)
    assert len(monitor.failures) == 1
    assert sorted(set(steps)) == list(range(1, NUM_STEPS + 1))
    assert len(steps) < 2 * NUM_STEPS - 3, "the second attempt begins at the last files of the first"


def test_stop_request_saves_the_files_of_running_tasks(engine: RayEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monitor = DirectoryMonitor(tmp_path, 0.2, lambda: setattr(monitor, "is_stopped", True))
    assert list(engine.run([counting_task(log)], monitor)) == []
    assert 0 < int((tmp_path / "0" / "counter").read_text()) == logged_steps(log)[-1] < NUM_STEPS


def test_values_larger_than_the_object_store_are_spilled(engine: RayEngine, tmp_path: Path) -> None:
    arrays = [np.full(30 * 2**20, number, np.uint8) for number in range(1, 5)]  # 120 MiB, in a store of 80 MiB
    shared = [engine.share(array) for array in arrays]
    tasks = [
        Task(key=str(number), name="sum", function=sum_array, make_arguments=lambda value=value: (value,))
        for number, value in enumerate(shared)
    ]
    results = dict(engine.run(tasks, DirectoryMonitor(tmp_path)))
    assert [results[number] for number in range(4)] == [number * 30 * 2**20 for number in range(1, 5)]


def test_lost_head_node_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    engine = RayEngine(ray, num_gpus=0.0, num_cpus=1)
    ray.kill(engine.collector)  # it is on the head node
    with pytest.raises(UserError, match=r"^the Ray cluster failed: ActorDiedError: .*; finished work is kept$"):
        list(engine.run([counting_task(tmp_path / "log")], DirectoryMonitor(tmp_path)))


def test_failed_run_leaves_no_actor_in_an_open_connection(cluster: Cluster) -> None:
    with pytest.raises(KeyboardInterrupt), open_ray(None, num_gpus=0.0, num_cpus=1) as engine:
        ray.get(engine.collector.take.remote())
        raise KeyboardInterrupt
    assert ray.is_initialized()
    deadline = time.monotonic() + 60  # Ray does not wait until a killed actor has ended
    with pytest.raises(ray.exceptions.ActorDiedError):
        while time.monotonic() < deadline:
            ray.get(engine.collector.take.remote())


def test_worker_that_no_node_can_run_is_refused(cluster: Cluster) -> None:
    engine = RayEngine(ray, num_gpus=2.0, num_cpus=1)
    with pytest.raises(UserError, match=r"a worker needs 1 CPUs and 2 GPUs on one node, but .* at most .*, 0 GPUs"):
        engine.check_resources()
