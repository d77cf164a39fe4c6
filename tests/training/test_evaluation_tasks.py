"""Networks of evaluations and pools as tasks of an engine: their groups, progress and files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from condenset.engine import ComputeDevice, tasks
from condenset.engine.tasks import Task, TaskMonitor
from condenset.methods.pools import tasks as pool_tasks
from condenset.methods.pools.pool_training import fill_pool, pool_protocol
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training import evaluation_tasks
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from helpers.interruption import RecordProgress
from helpers.recording_engine import RecordingEngine
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=4, depth=1)"


class Workers(RecordingEngine):
    """An engine of several workers, which can stop while the third task runs."""

    def __init__(self, num: int, *, is_stopped: bool = False) -> None:
        super().__init__()
        self.num, self.is_stopped = num, is_stopped

    def num_workers(self) -> int:
        return self.num

    def run(self, tasks: Sequence[Task], monitor: TaskMonitor) -> Iterator[tuple[int, Any]]:
        results = super().run(tasks, monitor)
        yield from itertools.islice(results, 2) if self.is_stopped else results
        if self.is_stopped:
            monitor.write_files(2, {"file": b"of an unfinished task"})
            raise Interrupted


@pytest.fixture(autouse=True)
def parallel_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a task have up to four networks, as on a GPU, and report after every step."""
    for module in (evaluation_tasks, pool_tasks):
        monkeypatch.setattr(module, "num_parallel", lambda *_: 4)
    monkeypatch.setattr(tasks, "REPORT_SECONDS", 0.0)


def score(run: RunContext, num_networks: int = 8) -> tuple[float, ...]:
    protocol = Protocol(network=SPEC, num_networks=num_networks, epochs=4, batch_size=4)
    return score_set(tiny_data([6, 6]), tiny_data([9, 9], seed=1), protocol, run).accuracies


def train_pool(run: RunContext, directory: Path, num_networks: int = 8) -> None:
    data = tiny_data([20, 20])
    fill_pool(data, directory, num_networks, pool_protocol(data, network=SPEC, epochs=2), run, num_checkpoints=1)


@pytest.mark.parametrize("work", [score, lambda run: train_pool(run, run.directory / "pool")])
def test_resumed_run_has_the_same_groups_of_networks_and_leaves_no_files(work: Any, tmp_path: Path) -> None:
    run = RunContext(compute=CPU, directory=tmp_path, engine=Workers(3, is_stopped=True))
    with pytest.raises(Interrupted):
        work(run)
    (kept,) = (tmp_path / "tasks").iterdir()
    run.engine = resumed = Workers(3)
    work(run)
    assert len(resumed.names[0]) == 1 and "networks 6 to 7" in resumed.names[0][0], "checkpoints belong to groups"
    assert kept.name.endswith(".0006") and not kept.exists()


def test_files_of_other_groups_are_removed(tmp_path: Path) -> None:
    run = RunContext(compute=CPU, directory=tmp_path, engine=Workers(8, is_stopped=True))
    with pytest.raises(Interrupted):
        score(run)
    run.engine = Workers(2)  # so that the groups have four networks
    assert len(score(run)) == 8
    assert not (tmp_path / "tasks").exists()


@pytest.mark.parametrize("work", [score, lambda run: train_pool(run, run.directory / "pool")])
def test_progress_of_tasks_grows_evenly(work: Any, tmp_path: Path) -> None:
    run = RunContext(compute=CPU, directory=tmp_path, engine=Workers(2), progress=RecordProgress())
    work(run)
    assert isinstance(run.progress, RecordProgress)
    updates = [0.0, *run.progress.updates]
    assert max(later - earlier for earlier, later in itertools.pairwise(updates)) < 0.2 * updates[-1]
