"""Runs on a real cluster: the same results as in one process, also if workers are killed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from ray.cluster_utils import Cluster

import condenset as cs
from condenset.engine.ray_tasks import RayEngine
from condenset.methods import Recipe
from condenset.methods.sharding import CondenseJob, condense_jobs
from condenset.runs import checkpoint
from helpers.cluster_runs import (
    LONG,
    NETWORK,
    check_progress,
    has_checkpoint,
    kill_worker,
    list_finished,
    load_images,
    make_run,
    poll_often,
    read_events,
    read_starts,
    wait_until,
)
from helpers.command_line import CommandResult, CommandRunner, read_records
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import tiny_recipe


@pytest.fixture(autouse=True)
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect the reports of the workers often."""
    poll_often(monkeypatch.setattr)


@pytest.fixture
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint whenever the host waits for the device."""
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)


def condense_on(engine: RayEngine, data: cs.ImageData, recipe: Recipe) -> cs.CondensedSet:
    run = make_run(engine=engine)
    ((_, (condensed,)),) = condense_jobs([CondenseJob(recipes=[recipe], data=data, run=run)], run)
    return condensed


@pytest.mark.parametrize("method", ["dm", "dmplus"])
def test_set_equals_that_of_one_process(method: str, engine: RayEngine) -> None:
    data, recipe = tiny_data([9, 4, 9, 9], channels=1), tiny_recipe(method)
    whole, condensed = cs.METHODS[method].condense(data, recipe, make_run()), condense_on(engine, data, recipe)
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


def run_disturbed(condenset: CommandRunner, dataset: Path, disturb: Callable[[], None]) -> CommandResult:
    """Run LONG on the cluster in this process, while a thread disturbs it."""
    thread = threading.Thread(target=disturb)
    thread.start()
    result = condenset("condense", dataset, *LONG, "--engine", "ray", "--out", "run")
    thread.join()
    return result


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
