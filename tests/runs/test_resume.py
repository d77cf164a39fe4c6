"""Work that is interrupted and resumed has the result of undisturbed work, and repeats no step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.config import field_names
from condenset.engine import ComputeDevice
from condenset.io.progress import NullProgress
from condenset.methods import METHODS, make_recipe
from condenset.methods.pools.pool_training import fill_pool, pool_protocol
from condenset.methods.reference_network import get_reference_network
from condenset.pipeline.execute import execute_plan
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.search.ranking import rank_architectures
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from helpers.interruption import RecordProgress, StopAtLoop, StopAtStep
from helpers.loops import checkpoint_tensors
from helpers.plans import SPLITS, make_tiny_plan
from helpers.pools import read_pool_files
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import DISTINCT_METHODS

CPU = ComputeDevice.select("cpu")
DATA, TEST = tiny_data([8, 8]), tiny_data([9, 9], seed=1)
BATCH_NORM = "convnet(width=8, depth=2, norm='batch')"
PROTOCOL = Protocol(network=BATCH_NORM, num_networks=2, epochs=2, batch_size=8)  # 3 epochs of 2 steps
DSA_STEPS = {"iterations": 2, "outer_steps": 3, "inner_epochs": 2}  # a new network after 3 steps

Result = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """Work that a run can resume.

    Attributes:
        name: Name of the test case.
        execute: Do the work, and return the result.
        stops: Progress at which the work is interrupted, one after another.
        stop: The progress display that interrupts.
    """

    name: str
    execute: Callable[[RunContext], Result]
    stops: tuple[float, ...]
    stop: Callable[[RunContext, Any], NullProgress] = StopAtStep


def set_result(condensed: cs.CondensedSet) -> Result:
    return {"images": condensed.images, "labels": condensed.labels, "step_sizes": condensed.step_sizes}


def condense_with(method: str, **fields: Any) -> Callable[[RunContext], Result]:
    small = {"network": "convnet(width=8, depth=2)", "iterations": 3, "batch_size": 4, "epochs": 2}
    tiny = {**METHODS[method].tiny, **small, **fields}
    names = field_names(METHODS[method].recipe)
    recipe = make_recipe(method, ipc=2, name="tiny", size=8, **{key: tiny[key] for key in tiny.keys() & names})
    return lambda run: set_result(METHODS[method].condense(DATA, recipe, run))


def score(run: RunContext) -> Result:
    return {"accuracies": score_set(DATA, TEST, PROTOCOL, run).accuracies}


def score_user_network(run: RunContext) -> Result:
    """A user's network that was in training begins again; those tested before are not repeated."""

    def dropout_network(channels: int, size: int, num_classes: int) -> torch.nn.Module:
        layers = (torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(channels * size**2, num_classes))
        return torch.nn.Sequential(*layers)

    protocol = Protocol(network=dropout_network, num_networks=3, epochs=2, batch_size=8)  # type: ignore[arg-type]
    return {"accuracies": score_set(DATA, TEST, protocol, run).accuracies}


def train_reference_network(run: RunContext) -> Result:
    reference = get_reference_network(DATA, PROTOCOL, run)
    return {**reference.network.state_dict(), "forgetting": reference.forgetting_N}


def train_pool(run: RunContext) -> Result:
    assert run.directory is not None
    protocol = pool_protocol(DATA, network=BATCH_NORM, epochs=3, batch_size=4, lr=0.05)
    directory = run.directory / "pool"
    fill_pool(DATA, directory, 2, protocol, run, edges=(0.0, 0.5, 1.0))
    return dict(read_pool_files(directory))


def rank(run: RunContext) -> Result:
    specs = [BATCH_NORM, "mlp(width=8)"]
    ranking = rank_architectures(specs, DATA, TEST, PROTOCOL, run)
    return {row.name: row.accuracy for row in ranking.rows}


def execute_run(run: RunContext) -> Result:
    records = execute_plan(make_tiny_plan(), SPLITS, run)
    return {str(index): record["accuracies"] for index, record in enumerate(records)}


METHOD_WORK = [
    Work(method, condense_with(method), () if method == "random" else (2,))  # `random` takes no time
    for method in sorted(set(DISTINCT_METHODS) - {"idm", "dmplus"})  # tests of the queue and of pools resume them
]
OTHER_WORK = [
    Work("dm, stopped often", condense_with("dm", iterations=9), (2, 5, 7)),
    Work("dm with batch norm", condense_with("dm", network=BATCH_NORM, iterations=9), (2, 5)),
    Work("dsa within a network", condense_with("dsa", **DSA_STEPS), (2, 4)),
    Work("dsa with batch norm", condense_with("dsa", network=BATCH_NORM, **DSA_STEPS), (2, 4)),
    Work("score", score, (1, 2, 5, 8, 11)),
    Work("score a user network", score_user_network, (7, 14)),
    Work("reference network", train_reference_network, (1, 2, 4)),
    Work("pool", train_pool, (1, 4, 9, 14)),
    Work("ranking", rank, (0.1, 0.5, 1.2, 3.4)),
    Work("run", execute_run, (1, 2, 2), StopAtLoop),
]


@pytest.fixture(autouse=True)
def sync_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)


def make_run(directory: Path) -> RunContext:
    directory.mkdir(exist_ok=True)
    return RunContext(seed=1, compute=CPU, directory=directory, job="job")


@pytest.mark.parametrize("work", [*METHOD_WORK, *OTHER_WORK], ids=lambda work: work.name)
def test_interrupted_and_resumed_equals_undisturbed(work: Work, tmp_path: Path) -> None:
    expected = work.execute(make_run(tmp_path / "undisturbed"))
    for position in work.stops:
        run = make_run(tmp_path / "interrupted")
        run.progress = work.stop(run, position)
        with pytest.raises(Interrupted):
            work.execute(run)
        assert not run.stop.listening
    run = make_run(tmp_path / "interrupted")
    run.progress = progress = RecordProgress()
    result = work.execute(run)
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(result[name], value) if isinstance(value, Tensor) else result[name] == value, name
    if work.stops and work.stop is StopAtStep and "user" not in work.name:
        assert progress.updates[0] > work.stops[-1]  # no step is repeated


@pytest.mark.parametrize("method", ["dm", "mmd", "dc", "dsa", "dd", "ld"])
def test_interrupted_within_a_slow_step_equals_undisturbed(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.loop.SLOW_STEP_SECONDS", 0.0)
    fields = DSA_STEPS if method in ("dc", "dsa") else {}
    execute = condense_with(method, **fields)
    expected = execute(make_run(tmp_path / "undisturbed"))
    run = make_run(tmp_path / "interrupted")
    run.progress = StopAtStep(run, 1.1)
    with pytest.raises(Interrupted):
        execute(run)
    assert int(checkpoint_tensors(tmp_path / "interrupted")["clock"]) == 1  # the second step was discarded
    result = execute(make_run(tmp_path / "interrupted"))
    for name, value in expected.items():
        assert value is None or torch.equal(result[name], value), name


@pytest.mark.parametrize("method", ["dm", "dsa"])
def test_resuming_from_a_damaged_checkpoint_equals_undisturbed(method: str, tmp_path: Path) -> None:
    execute = condense_with(method, **DSA_STEPS if method == "dsa" else {"iterations": 5})
    expected = execute(make_run(tmp_path / "undisturbed"))
    for position in (2, 4):
        run = make_run(tmp_path / "interrupted")
        run.progress = StopAtStep(run, position)
        with pytest.raises(Interrupted):
            execute(run)
    path = tmp_path / "interrupted" / "checkpoint"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="checkpoint is damaged: the job continues from the checkpoint before it"):
        result = execute(make_run(tmp_path / "interrupted"))
    assert torch.equal(result["images"], expected["images"])
