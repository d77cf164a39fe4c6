"""Runs on a real cluster: the same results as in one process, also if workers or the driver are killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.cluster_utils import Cluster

import condenset as cs
from condenset.engine.device import ComputeDevice
from condenset.engine.ray_tasks import RayEngine
from condenset.engine.threads import use_threads
from condenset.methods import Recipe, make_recipe
from condenset.methods.sharding import CondenseJob, condense_jobs
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from condenset.runs.events import EVENTS, iter_events
from condenset.runs.status_report import read_status
from helpers.cluster_nodes import CLIENT_PORT, LATE_NODE, NODE, SECOND_NODE
from helpers.command_line import CommandProcess, CommandResult, CommandRunner, read_records, write_npz
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe

NETWORK = ("--network", "convnet(width=8, depth=1)", "--device", "cpu")
LONG = ("--method", "dm", "--ipc", 2, "--iterations", 300, *NETWORK)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny dataset of four classes, one of which is smaller than a batch."""
    return write_npz(tmp_path_factory.mktemp("data") / "toy.npz", (12, 5, 12, 12))


@pytest.fixture(scope="module")
def undisturbed(dataset: Path, cluster: Cluster) -> torch.Tensor:
    """The images of the run LONG in one process."""
    train, settings = cs.load(dataset, verbose=False).train, {"network": NETWORK[1], "iterations": LONG[5]}
    recipe = make_recipe("dm", ipc=2, name=train.name, size=train.size, **settings)
    with use_threads(1):
        return cs.METHODS["dm"].condense(train, recipe, make_run()).images


@pytest.fixture
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint whenever the host waits for the device."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)


def make_run(**fields: Any) -> RunContext:
    """Return a run that computes one class at a time, as the shards of four classes on two workers do."""
    return RunContext(compute=ComputeDevice.select("cpu"), classes_per_chunk=1, **fields)


def condense_on(engine: RayEngine, data: cs.ImageData, recipe: Recipe) -> cs.CondensedSet:
    run = make_run(engine=engine)
    ((_, (condensed,)),) = condense_jobs([CondenseJob(recipes=[recipe], data=data, run=run)], run)
    return condensed


def load_images(directory: Path) -> torch.Tensor:
    return cs.CondensedSet.load(directory / "sets" / "dm-2.safetensors").images


def read_events(directory: Path, state: str, name: str = "") -> list[dict[str, Any]]:
    """Return the events of tasks with this state whose name contains `name`."""
    events = (event for event in iter_events(directory / EVENTS) if event["event"] == "task")
    return [event for event in events if event["state"] == state and name in event["name"]]


def read_nodes(directory: Path) -> set[str]:
    """Return the nodes that tasks were started on."""
    return {event["node"] for event in read_events(directory, "started")}


def start(dataset: Path, address: str, tmp_path: Path, settings: Sequence[object] = LONG) -> CommandProcess:
    """Start a run on the cluster in a process of its own."""
    options = ("--engine", "ray", "--address", address, "--out", tmp_path / "run")
    return CommandProcess(("condense", dataset, *settings, *options), tmp_path / "output")


def read_starts(directory: Path, began: float) -> list[dict[str, Any]]:
    """Return the starts of tasks since a time."""
    return [event for event in read_events(directory, "started") if event["time"] >= began]


def list_finished(directory: Path) -> list[Path]:
    """Return the sets of the finished shards."""
    return list((directory / "tasks").glob("*/set-0.safetensors"))


def has_checkpoint(directory: Path) -> bool:
    return any((directory / "tasks").glob("*/checkpoint"))


def kill_worker(name: str) -> bool:
    """Kill the process that runs a task whose name begins with `name`; return whether there was one."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"ray::{name}".encode()):
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
    return False


@pytest.mark.parametrize("method", ["dm", "dmplus"])
def test_set_equals_that_of_one_process(method: str, engine: RayEngine) -> None:
    data, recipe = tiny_data([9, 4, 9, 9], channels=1), tiny_recipe(method)
    whole, condensed = cs.METHODS[method].condense(data, recipe, make_run()), condense_on(engine, data, recipe)
    assert torch.equal(condensed.images, whole.images)
    assert torch.equal(condensed.labels, whole.labels)
    assert condensed.provenance["shards"] == 4


def test_client_outside_the_cluster_gets_the_same_set(dataset: Path, cluster: Cluster, tmp_path: Path) -> None:
    settings = ("--method", "random", "--ipc", 2, "--device", "cpu")
    result = start(dataset, f"ray://127.0.0.1:{CLIENT_PORT}", tmp_path, settings).wait()
    assert result.code == 0, result
    expected = cs.condense(cs.load(dataset, verbose=False).train, "random", ipc=2, verbose=False)
    condensed = cs.CondensedSet.load(tmp_path / "run" / "sets" / "random-2.safetensors")
    assert torch.equal(condensed.images, expected.images)
    assert condensed.provenance["engine"] == "ray"


def test_scores_equal_those_of_one_process(dataset: Path, cluster: Cluster, condenset: CommandRunner) -> None:
    train = cs.load(dataset, verbose=False).train
    cs.condense(train, "random", ipc=2, verbose=False).save("set.safetensors")
    options = ("--dataset", dataset, *NETWORK, "--nets", 3, "--epochs", 3, "--json")
    local = condenset("evaluate", "set.safetensors", *options, "--out", "local")
    on_cluster = condenset("evaluate", "set.safetensors", *options, "--out", "cluster", "--engine", "ray")
    assert (local.code, on_cluster.code) == (0, 0), on_cluster
    names = ("accuracies", "confusion", "network", "settings")
    (expected,), (record,) = read_records(Path("local")), read_records(Path("cluster"))
    assert [record[name] for name in names[:3]] == [expected[name] for name in names[:3]]
    assert not (Path("cluster") / "tasks").exists()


def run_disturbed(condenset: CommandRunner, dataset: Path, disturb: Callable[[], None]) -> CommandResult:
    """Run LONG on the cluster in this process, while a thread disturbs it."""
    thread = threading.Thread(target=disturb)
    thread.start()
    result = condenset("condense", dataset, *LONG, "--engine", "ray", "--out", "run")
    thread.join()
    return result


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def check_progress(directory: Path) -> None:
    """Check that a finished run has counted every task once."""
    report = read_status(directory)
    assert (report.state, report.step, report.note) == ("finished", report.total, "4 of 4 tasks")
    assert report.tasks == {"finished": 4, "nodes": []}


def test_killed_worker_does_not_change_the_set(
    dataset: Path, undisturbed: torch.Tensor, condenset: CommandRunner, frequent_checkpoints: None
) -> None:
    def disturb() -> None:
        wait_until(lambda: has_checkpoint(Path("run")) and kill_worker("dm-2: class"))

    result = run_disturbed(condenset, dataset, disturb)
    assert result.code == 0, result
    assert torch.equal(load_images(Path("run")), undisturbed)
    (failure,) = read_events(Path("run"), "failed")
    assert failure["reason"].startswith("WorkerCrashedError")
    check_progress(Path("run"))
    assert not Path("run/tasks").exists()


def test_removed_node_and_node_that_joins_late_do_not_change_the_set(
    dataset: Path, cluster: Cluster, undisturbed: torch.Tensor, tmp_path: Path
) -> None:
    directory, (removed,) = tmp_path / "run", cluster.worker_nodes
    process = start(dataset, cluster.address, tmp_path)
    process.wait_until(lambda: SECOND_NODE in read_nodes(directory) and has_checkpoint(directory))
    cluster.remove_node(removed, allow_graceful=False)
    cluster.add_node(**NODE, node_ip_address=LATE_NODE)
    result = process.wait()
    assert result.code == 0, result
    assert torch.equal(load_images(directory), undisturbed)
    assert {event["node"] for event in read_events(directory, "failed")} == {SECOND_NODE}
    assert LATE_NODE in read_nodes(directory)
    assert "(raylet)" not in result.out, "Ray prints no messages of its own"
    check_progress(directory)


def test_shard_that_fails_three_times_stops_the_run_and_finished_shards_are_kept(
    dataset: Path, undisturbed: torch.Tensor, condenset: CommandRunner
) -> None:
    def kill_three_times() -> None:
        for number in range(3):
            wait_until(lambda number=number: len(read_events(Path("run"), "started", "class 3")) > number)
            wait_until(lambda: kill_worker("dm-2: class 3"))

    result = run_disturbed(condenset, dataset, kill_three_times)
    rule = r"condenset: dm-2: class 3 \('class 3'\) failed 3 times, the last time on node [\d.]+: WorkerCrashedError: "
    assert result.code == 2
    assert re.match(rule + r".*; finished work is kept$", result.err.splitlines()[-1])
    finished = list_finished(Path("run"))
    assert len(finished) == len(read_events(Path("run"), "finished")) > 0
    began = time.time()
    resumed = condenset("resume", "run")
    assert resumed.code == 0, resumed
    assert torch.equal(load_images(Path("run")), undisturbed)
    assert len(read_starts(Path("run"), began)) == 4 - len(finished)


def test_images_larger_than_the_object_stores_give_the_same_set(engine: RayEngine) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (4 * 2500, 3, 64, 64), np.uint8)  # 117 MiB in stores of 80 MiB each
    data = cs.from_arrays(images, np.repeat(np.arange(4), 2500))
    recipe = tiny_recipe("dm", network="convnet(width=4, depth=1)", iterations=2)
    whole = cs.METHODS["dm"].condense(data, recipe, make_run())
    condensed = condense_on(engine, data, recipe)
    assert torch.equal(condensed.images, whole.images)


def test_run_whose_driver_ends_twice_is_resumed(
    dataset: Path, cluster: Cluster, undisturbed: torch.Tensor, tmp_path: Path, condenset: CommandRunner
) -> None:
    directory = tmp_path / "run"
    process = start(dataset, cluster.address, tmp_path)
    process.wait_until(lambda: bool(list_finished(directory)))
    process.wait_until(lambda: has_checkpoint(directory))
    process.send(signal.SIGINT)
    assert process.wait().code == 130
    finished, began = list_finished(directory), time.time()
    process = CommandProcess(("resume", directory), tmp_path / "output")
    process.wait_until(lambda: bool(read_starts(directory, began)))
    process.send(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL
    assert 0 < len(finished) <= len(list_finished(directory)) < 4
    finished, began = list_finished(directory), time.time()
    resumed = condenset("resume", directory)
    assert resumed.code == 0, resumed
    assert torch.equal(load_images(directory), undisturbed)
    assert len(read_starts(directory, began)) == 4 - len(finished)
