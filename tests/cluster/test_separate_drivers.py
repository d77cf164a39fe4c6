"""Runs whose driver is a process of its own: clients, nodes that leave and join, and drivers that are killed.

These tests are the last ones, because workers of one driver do not run tasks of another one.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import torch
from ray.cluster_utils import Cluster

import condenset as cs
from helpers.cluster_nodes import CLIENT_PORT, LATE_NODE, NODE, SECOND_NODE
from helpers.cluster_runs import (
    check_progress,
    has_checkpoint,
    list_finished,
    load_images,
    pause_workers,
    poll_often,
    read_events,
    read_nodes,
    read_starts,
    start,
    wait_until,
)
from helpers.command_line import CommandProcess, CommandRunner


def test_client_outside_the_cluster_gets_the_same_set(dataset: Path, cluster: Cluster, tmp_path: Path) -> None:
    settings = ("--method", "random", "--ipc", 2, "--device", "cpu")
    result = start(dataset, f"ray://127.0.0.1:{CLIENT_PORT}", tmp_path, settings).wait()
    assert result.code == 0, result
    expected = cs.condense(cs.load(dataset, verbose=False).train, "random", ipc=2, verbose=False)
    condensed = cs.CondensedSet.load(tmp_path / "run" / "sets" / "random-2.safetensors")
    assert torch.equal(condensed.images, expected.images)
    assert condensed.provenance["engine"] == "ray"


def test_removed_node_and_node_that_joins_late_do_not_change_the_set(
    dataset: Path, cluster: Cluster, undisturbed: torch.Tensor, tmp_path: Path
) -> None:
    directory, (removed,) = tmp_path / "run", cluster.worker_nodes
    process = start(dataset, cluster.address, tmp_path)
    process.wait_until(lambda: SECOND_NODE in read_nodes(directory) and has_checkpoint(directory))
    with pause_workers("dm-2: class"):  # so that the late node finds unfinished tasks
        cluster.remove_node(removed, allow_graceful=False)
        cluster.add_node(**NODE, node_ip_address=LATE_NODE)
        wait_until(lambda: LATE_NODE in read_nodes(directory))
    result = process.wait()
    assert result.code == 0, result
    assert torch.equal(load_images(directory), undisturbed)
    assert {event["node"] for event in read_events(directory, "failed")} == {SECOND_NODE}
    assert LATE_NODE in read_nodes(directory)
    assert "(raylet)" not in result.out, "Ray prints no messages of its own"
    check_progress(directory)


def test_run_whose_driver_ends_twice_is_resumed(
    dataset: Path, cluster: Cluster, undisturbed: torch.Tensor, tmp_path: Path, condenset: CommandRunner
) -> None:
    directory = tmp_path / "run"
    process = start(dataset, cluster.address, tmp_path)
    process.wait_until(lambda: bool(list_finished(directory)))
    process.wait_until(lambda: has_checkpoint(directory))
    with pause_workers("dm-2: class"):  # so that they receive the stop request before they finish
        process.send(signal.SIGINT)
        process.wait_until(lambda: "stopping" in Path(process.paths[1]).read_text())
    assert process.wait().code == 130
    finished, began = list_finished(directory), time.time()
    process = CommandProcess(("resume", directory), tmp_path / "output", poll_often)
    process.wait_until(lambda: bool(read_starts(directory, began)))
    process.send(signal.SIGKILL)
    assert process.wait().code == -signal.SIGKILL
    assert 0 < len(finished) <= len(list_finished(directory)) < 4
    finished, began = list_finished(directory), time.time()
    resumed = condenset("resume", directory)
    assert resumed.code == 0, resumed
    assert torch.equal(load_images(directory), undisturbed)
    assert len(read_starts(directory, began)) == 4 - len(finished)
