"""Run tasks on Ray: they go to workers as these become free, and start again if a worker or a node dies."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from condenset.engine.ray_connection import check_reachable, connect, import_ray
from condenset.engine.tasks import Engine, Files, SharedValue, Task, TaskMonitor, TaskSession, TaskStopped
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
    try:
        engine = RayEngine(ray, num_gpus=num_gpus, num_cpus=num_cpus)
        engine.check_resources()
        yield engine
        engine.close()
    finally:
        if not is_connected:
            ray.shutdown()


class TaskCollector:
    """The actor that collects progress and files of the running tasks, on the machine of the driver.

    A schedule is one call of `RayEngine.run`. Only the present one counts: a task of an earlier one, whose worker was
    believed to be dead, is asked to stop.
    """

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, schedule: int) -> None:
        """Begin a schedule."""
        self.schedule, self.stop = schedule, False
        self.shares: dict[int, float] = {}
        self.nodes: dict[int, str] = {}
        self.files: dict[int, dict[str, bytes | None]] = {}

    def start(self, schedule: int, index: int, node: str) -> None:
        """Record the node that a task runs on."""
        if schedule == self.schedule:
            self.nodes[index] = node

    def update(self, schedule: int, index: int, share: float, files: Files) -> bool:
        """Store progress and changed files of a task, and return whether it must stop."""
        if schedule != self.schedule:
            return True
        self.shares[index] = share
        self.files.setdefault(index, {}).update(files)
        return self.stop

    def request_stop(self) -> None:
        """Ask all tasks to stop at their next update."""
        self.stop = True

    def take(self) -> tuple[dict[int, float], dict[int, str], dict[int, dict[str, bytes | None]]]:
        """Return progress, nodes and the files since the last call."""
        files, self.files = self.files, {}
        return self.shares, self.nodes, files


def run_task(
    collector: Any,
    schedule: int,
    index: int,
    function: Callable[..., Any],
    files: Mapping[str, bytes],
    *arguments: Any,
) -> Any:
    """Run a task in a worker."""
    ray = import_ray()
    ray.get(collector.start.remote(schedule, index, ray.util.get_node_ip_address()))

    def send(share: float, changed: Files) -> bool:
        stop: bool = ray.get(collector.update.remote(schedule, index, share, changed))
        return stop

    return TaskSession(files, send).run(function, arguments)


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
        self.num_schedules = 0
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
        resources = self.ray.cluster_resources()
        kind, needed = ("GPU", self.num_gpus) if self.num_gpus else ("CPU", self.num_cpus)
        return max(1, int(resources.get(kind, 0) / needed))

    def check_resources(self) -> None:
        """Raise a UserError if no node of the cluster can run a task."""
        wanted = {"CPU": float(self.num_cpus), "GPU": self.num_gpus}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(kind, 0) >= num for kind, num in wanted.items()) for node in nodes):
            text = " and ".join(f"{num:g} {kind}s" for kind, num in wanted.items() if num)
            most = ", ".join(f"{max((node.get(kind, 0) for node in nodes), default=0):g} {kind}s" for kind in wanted)
            raise UserError(f"a worker needs {text} on one node, but the nodes of the cluster have at most {most}")

    def share(self, value: Any) -> SharedValue:
        return _StoredValue(self.ray.put(value))

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        schedule = _Schedule(self, tasks, monitor)
        try:
            yield from schedule.run()
        finally:
            schedule.close()


class _StoredValue(SharedValue):
    """A value in the object store of the cluster."""

    def get(self) -> Any:
        return import_ray().get(self._value)


class _Schedule:
    """The tasks of one call of `run`: waiting, handed out and done."""

    def __init__(self, engine: RayEngine, tasks: Sequence[Task], monitor: TaskMonitor) -> None:
        self.engine, self.ray, self.tasks, self.monitor = engine, engine.ray, tasks, monitor
        self.waiting = collections.deque(range(len(tasks)))
        self.running: dict[Any, int] = {}  # by reference of the result
        self.attempts = [0] * len(tasks)
        self.nodes: dict[int, str] = {}
        self.stop_time: float | None = None
        self.collector = engine.collector
        engine.num_schedules += 1
        self.number = engine.num_schedules
        self.ray.get(self.collector.begin.remote(self.number))

    def run(self) -> Iterator[tuple[int, Any]]:
        """Yield results in order of completion."""
        while self.waiting or self.running:
            self._hand_out()
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=POLL_SECONDS)
            self._collect()
            for reference in ready:
                index = self.running.pop(reference)
                done, result = self._get(reference, index)
                if done and not isinstance(result, TaskStopped):
                    yield index, result
            self._check_stop()

    def _hand_out(self) -> None:
        """Hand out tasks, a few more than there are workers. Nodes may have joined or left."""
        limit = TASKS_PER_WORKER * self.engine.num_workers()
        while self.waiting and len(self.running) < limit:
            index = self.waiting.popleft()
            task, files = self.tasks[index], self.monitor.read_files(index)
            remote = self.engine.remote_task.options(name=task.name)
            arguments = (self.number, index, task.function, files, *task.make_arguments())
            self.running[remote.remote(self.collector, *arguments)] = index

    def _collect(self) -> None:
        """Store what the tasks have sent."""
        shares, nodes, files = self.ray.get(self.collector.take.remote())
        for index, changed in files.items():
            if changed:
                self.monitor.write_files(index, changed)
        for index, node in nodes.items():
            if self.nodes.get(index) != node:
                self.nodes[index] = node
                self.monitor.record_start(index, node)
        self.monitor.update(shares)

    def _get(self, reference: Any, index: int) -> tuple[bool, Any]:
        """Return whether a task is done, and its result. A failed task waits for its next attempt."""
        try:
            return True, self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return False, None
        except self.ray.exceptions.RayError as error:
            if self.stop_time is None:
                self._retry(index, _describe_error(error))
            return False, None

    def _retry(self, index: int, reason: str) -> None:
        self.attempts[index] += 1
        task, node = self.tasks[index], self.nodes.pop(index, "unknown")
        if self.attempts[index] == MAX_ATTEMPTS:
            times = f"failed {MAX_ATTEMPTS} times, the last time on node {node}"
            raise UserError(f"{task.name} {times}: {reason}; finished work is kept")
        self.monitor.record_failure(index, node, reason)
        self.waiting.appendleft(index)

    def _check_stop(self) -> None:
        """After a stop request, hand out no more tasks, and give running ones time to save their state."""
        if self.stop_time is None and self.monitor.stop_requested():
            self.stop_time = time.monotonic()
            self.collector.request_stop.remote()
            for reference, index in self.running.items():
                if index not in self.nodes:  # not started yet
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
    """Return why a task failed in one line: the error that it raised, or how its worker died."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, UserError):
        return str(cause)
    kind = type(cause).__name__
    return f"{kind}: {format_error(cause)}"
