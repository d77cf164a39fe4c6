"""Run tasks on Ray: they go to workers as these become free, and start again if a worker or a node dies."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from condenset.engine.ray_collector import AttemptReport, TaskCollector
from condenset.engine.ray_connection import check_reachable, connect, import_ray
from condenset.engine.ray_worker import VERSIONS, get_value, run_task
from condenset.engine.tasks import Engine, MissingFileError, SharedValue, Task, TaskMonitor, TaskStopped
from condenset.errors import UserError, format_error

MAX_ATTEMPTS = 3
TASKS_PER_WORKER = 2  # handed out at once, so that a worker never waits for its next task
POLL_SECONDS = 0.5
STOP_SECONDS = 30.0  # that tasks have to save their state after a stop request


@contextlib.contextmanager
def open_ray(address: str | None, *, num_gpus: float, num_cpus: int) -> Iterator[RayEngine]:
    """Connect to a Ray cluster, or start a Ray of this machine, for the duration of the block.

    If this process is connected already, that connection is used and stays open.

    Args:
        address: Address of the cluster. None: a Ray of this machine.
        num_gpus: GPUs of each task.
        num_cpus: CPUs of each task.
    """
    ray = import_ray()
    if address is not None:
        check_reachable(address)
    is_connected = ray.is_initialized()
    if not is_connected:
        connect(ray, address)
    with contextlib.ExitStack() as stack:
        if not is_connected:
            stack.callback(ray.shutdown)
        engine = RayEngine(ray, num_gpus=num_gpus, num_cpus=num_cpus)
        stack.callback(engine.close)
        engine.check_resources()
        yield engine


class RayEngine(Engine):
    """Run tasks on a Ray cluster.

    Args:
        ray: The module.
        num_gpus: GPUs of each task.
        num_cpus: CPUs of each task.
    """

    name = "ray"

    def __init__(self, ray: Any, *, num_gpus: float, num_cpus: int) -> None:
        self.ray, self.num_gpus, self.num_cpus = ray, num_gpus, num_cpus
        self.num_attempts = 0  # of all tasks
        options: dict[str, Any] = {"num_cpus": num_cpus, "max_retries": 0}  # attempts are counted here
        self.remote_task = ray.remote(**options, **({"num_gpus": num_gpus} if num_gpus else {}))(run_task)
        self.collector = self._start_collector()

    def _start_collector(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self.ray.get_runtime_context().get_node_id()
        strategy = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        return self.ray.remote(num_cpus=0, scheduling_strategy=strategy)(TaskCollector).remote()

    def close(self) -> None:
        """End the collector, if the connection to Ray stays open."""
        with contextlib.suppress(Exception):
            self.ray.kill(self.collector)

    def num_workers(self) -> int:
        needed = {kind: num for kind, num in self._resources().items() if num}
        per_node = [min(int(node.get(kind, 0) / num) for kind, num in needed.items()) for node in self._nodes()]
        return max(1, sum(per_node))

    def _resources(self) -> dict[str, float]:
        """Return what a task needs."""
        return {"CPU": float(self.num_cpus), "GPU": self.num_gpus}

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of all nodes."""
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]

    def check_resources(self) -> None:
        """Raise a UserError if no node of the cluster can run a task."""
        wanted, nodes = self._resources(), self._nodes()
        if not any(all(node.get(kind, 0) >= num for kind, num in wanted.items()) for node in nodes):
            text = " and ".join(f"{num:g} {kind}s" for kind, num in wanted.items() if num)
            most = ", ".join(f"{max((node.get(kind, 0) for node in nodes), default=0):g} {kind}s" for kind in wanted)
            raise UserError(f"a worker needs {text} on one node, but the nodes of the cluster have at most {most}")

    def share(self, value: Any) -> SharedValue:
        with self._wrap_errors():
            return StoredValue(self.ray.put(value))

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        schedule = _Schedule(self, tasks, monitor)
        try:
            with self._wrap_errors():
                yield from schedule.run()
        finally:
            schedule.close()

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        """Turn an error of Ray, such as a lost head node or a full disk, into a UserError."""
        try:
            yield
        except (self.ray.exceptions.RayError, ConnectionError) as error:
            raise UserError(f"the Ray cluster failed: {_describe_error(error)}; finished work is kept") from error


class StoredValue(SharedValue):
    """A value in the object store of the cluster."""

    def get(self) -> Any:
        return get_value(self._value)


@dataclass(frozen=True)
class _Attempt:
    """One start of a task: its number among those of all tasks, and the index of the task."""

    number: int
    index: int


class _Schedule:
    """The tasks of one call of `run`: waiting, handed out and done."""

    def __init__(self, engine: RayEngine, tasks: Sequence[Task], monitor: TaskMonitor) -> None:
        self.engine, self.ray, self.tasks, self.monitor = engine, engine.ray, tasks, monitor
        self.waiting = collections.deque(range(len(tasks)))
        self.running: dict[Any, _Attempt] = {}  # by reference of the result
        self.num_failures = [0] * len(tasks)
        self.nodes: dict[_Attempt, str] = {}  # of the attempts that a worker has started
        self.stop_time: float | None = None
        self.collector = engine.collector

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield results in order of completion."""
        while self.waiting or self.running:
            self._hand_out()
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
            self._collect()
            for reference in ready:
                attempt = self.running.pop(reference)
                self.collector.end.remote(attempt.number)
                done, result = self._get(reference, attempt)
                if done and not isinstance(result, TaskStopped):
                    yield attempt.index, result
            self._check_stop()

    def _hand_out(self) -> None:
        """Hand out tasks, a few more than there are workers. Nodes may have joined or left."""
        limit = TASKS_PER_WORKER * self.engine.num_workers()
        while self.waiting and len(self.running) < limit:
            index = self.waiting.popleft()
            task, files = self.tasks[index], self.monitor.read_files(index)
            remote = self.engine.remote_task.options(name=task.name)
            self.engine.num_attempts += 1
            attempt = _Attempt(self.engine.num_attempts, index)
            arguments = (attempt.number, VERSIONS, task.function, files, *task.make_arguments())
            self.running[remote.remote(self.collector, *arguments)] = attempt

    def _collect(self) -> None:
        """Store what the tasks have sent."""
        reports: dict[int, AttemptReport] = self.ray.get(self.collector.take.remote())
        present = {attempt: reports[attempt.number] for attempt in self.running.values() if attempt.number in reports}
        for attempt, report in present.items():
            if attempt not in self.nodes:
                self.nodes[attempt] = report.node
                self.monitor.record_start(attempt.index, report.node)
            if report.files:
                self.monitor.write_files(attempt.index, report.files)
        self.monitor.update({attempt.index: report.fraction for attempt, report in present.items()})

    def _get(self, reference: Any, attempt: _Attempt) -> tuple[bool, Any]:
        """Return whether a task is done, and its result. A failed task waits for its next attempt."""
        try:
            return True, self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return False, None
        except self.ray.exceptions.RayError as error:
            if self.stop_time is None:
                self._retry(attempt, error)
            return False, None

    def _retry(self, attempt: _Attempt, error: Exception) -> None:
        """Let a failed task wait for its next attempt. It has not failed if it waited on a node that died."""
        index = attempt.index
        self.waiting.appendleft(index)
        if attempt not in self.nodes and isinstance(error, self.ray.exceptions.NodeDiedError):
            return
        self.num_failures[index] += 1
        if isinstance(getattr(error, "cause", None), MissingFileError):
            self.engine.shares_files = False
        node, reason = self.nodes.get(attempt, "unknown"), _describe_error(error)
        self.monitor.record_failure(index, node, reason)
        if self.num_failures[index] == MAX_ATTEMPTS:
            times = f"failed {MAX_ATTEMPTS} times, the last time on node {node}"
            raise UserError(f"{self.tasks[index].name} {times}: {reason}; finished work is kept")

    def _check_stop(self) -> None:
        """After a stop request, hand out no more tasks, and give running ones time to save their state."""
        if self.stop_time is None and self.monitor.stop_requested():
            self.stop_time = time.monotonic()
            self.collector.request_stop.remote([attempt.number for attempt in self.running.values()])
            for reference, attempt in self.running.items():
                if attempt not in self.nodes:  # not started yet
                    self.ray.cancel(reference)
        if self.stop_time is not None:
            self.waiting.clear()
            if time.monotonic() - self.stop_time > STOP_SECONDS:
                self.close()

    def close(self) -> None:
        """Cancel the tasks that still run."""
        for reference in self.running:
            with contextlib.suppress(Exception):
                self.ray.cancel(reference, force=True)
        self.running.clear()


def _describe_error(error: BaseException) -> str:
    """Return why a task failed in one line: the error that it raised, or the first sentence of an error of Ray."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        return str(cause)
    text = format_error(cause) if cause else format_error(error).partition(". ")[0]
    return f"{type(cause or error).__name__}: {text}"
