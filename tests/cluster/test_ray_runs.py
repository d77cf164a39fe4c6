"""Runs on a real cluster: the same results as in one process, also if workers or the driver are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.cluster_utils import Cluster

import condenset as cs
from condenset.engine.device import ComputeDevice
from condenset.engine.ray_tasks import RayEngine
from condenset.methods.sharding import CondenseJob, condense_jobs
from condenset.runs.context import RunContext
from helpers.command_line import CommandProcess, CommandRunner, read_records, write_npz
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
    train = cs.load(dataset, verbose=False).train
    settings: dict[str, Any] = {"network": NETWORK[1], "iterations": 300, "device": "cpu"}
    return cs.condense(train, "dm", ipc=2, verbose=False, **settings).images


def load_images(directory: Path) -> torch.Tensor:
    return cs.CondensedSet.load(directory / "sets" / "dm-2.safetensors").images


def read_events(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "task"]


def read_states(directory: Path) -> list[str]:
    return [event["state"] for event in read_events(directory)]


def start(dataset: Path, cluster: Cluster, tmp_path: Path) -> CommandProcess:
    """Start the run LONG on the cluster in a process of its own."""
    options = ("--engine", "ray", "--address", cluster.address, "--out", tmp_path / "run")
    return CommandProcess(("condense", dataset, *LONG, *options), tmp_path / "output")


def has_checkpoint(directory: Path) -> Callable[[], bool]:
    return lambda: any((directory / "run" / "tasks").glob("*/checkpoint"))


def find_worker(name: str) -> int:
    """Return the id of the process that runs a task whose name begins with `name`."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"ray::{name}".encode()):
                return int(path.parent.name)
    raise AssertionError(f"no worker runs {name}")


@pytest.mark.parametrize("method", ["dm", "dmplus"])
def test_set_equals_that_of_one_process(method: str, engine: RayEngine) -> None:
    data, recipe = tiny_data([9, 4, 9, 9], channels=1), tiny_recipe(method)

    def run() -> RunContext:
        return RunContext(compute=ComputeDevice.select("cpu"), classes_per_chunk=1, job=method)

    whole, cluster_run = cs.METHODS[method].condense(data, recipe, run()), run()
    cluster_run.engine = engine
    ((_, (condensed,)),) = condense_jobs([CondenseJob(recipes=[recipe], data=data, run=cluster_run)], cluster_run)
    assert torch.equal(condensed.images, whole.images)
    assert torch.equal(condensed.labels, whole.labels)
    assert condensed.provenance["shards"] == 4


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


def test_killed_worker_does_not_change_the_set(
    dataset: Path, cluster: Cluster, undisturbed: torch.Tensor, tmp_path: Path
) -> None:
    process = start(dataset, cluster, tmp_path)
    process.wait_until(has_checkpoint(tmp_path))
    while process.process.is_alive() and "failed" not in read_states(tmp_path / "run"):
        with contextlib.suppress(AssertionError, ProcessLookupError):  # a worker may just have finished its task
            os.kill(find_worker("dm-2: class"), signal.SIGKILL)
        time.sleep(1)
    result = process.wait()
    assert result.code == 0, result
    torch.testing.assert_close(load_images(tmp_path / "run"), undisturbed)
    states = read_states(tmp_path / "run")
    assert "failed" in states and states.count("finished") == 4
    assert not (tmp_path / "run" / "tasks").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_run_whose_driver_ends_is_resumed(
    number: signal.Signals,
    dataset: Path,
    cluster: Cluster,
    undisturbed: torch.Tensor,
    tmp_path: Path,
    condenset: CommandRunner,
) -> None:
    process = start(dataset, cluster, tmp_path)
    process.wait_until(lambda: any((tmp_path / "run" / "tasks").glob("*/set-0.safetensors")))
    process.wait_until(has_checkpoint(tmp_path))
    process.send(number)
    result = process.wait()
    assert result.code == (130 if number == signal.SIGINT else -number), result
    finished = {path: path.read_bytes() for path in (tmp_path / "run" / "tasks").glob("*/set-0.safetensors")}
    assert 0 < len(finished) < 4
    began = time.time()
    resumed = condenset("resume", tmp_path / "run")
    assert resumed.code == 0, resumed
    torch.testing.assert_close(load_images(tmp_path / "run"), undisturbed)
    started = [event for event in read_events(tmp_path / "run") if event["state"] == "started"]
    assert len([event for event in started if event["time"] >= began]) == 4 - len(finished)
