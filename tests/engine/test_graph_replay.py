"""Captured steps compute the same as plain steps: one matrix for all methods and everything that trains."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset import CondensedSet
from condenset.engine import ComputeDevice
from condenset.methods import METHODS
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.pools.pool_training import train_pool
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.search.ranking import rank_architectures
from condenset.training.dataset import DeviceDataset
from condenset.training.forgetting import ForgettingCounter
from condenset.training.parallel import train_in_parallel
from condenset.training.protocol import PROTOCOLS, Protocol
from condenset.training.scoring import score_set
from condenset.training.trainer import Trainer
from helpers.graph_replay import capture_on_cpu
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data
from helpers.tiny_recipes import DISTINCT_METHODS, NETWORK, tiny_recipe

CPU = ComputeDevice.select("cpu")
SPECS = (
    "convnet(width=4, depth=2)",
    "convnet(width=4, depth=1, norm='batch')",
    "convnet(width=4, depth=1, norm='layer', activation='sigmoid', pooling='max')",
    "convnet(width=4, depth=1, norm='group', pooling='none')",
    "mlp(width=8)",
)
UNEQUAL = [6, 4, 6]
Case = Callable[[Path, bool], list[Tensor]]
"""Computes tensors with (a new directory, whether steps are captured)."""


def set_tensors(condensed: CondensedSet) -> list[Tensor]:
    return [condensed.images, condensed.labels, *([] if condensed.step_sizes is None else [condensed.step_sizes])]


def condense(
    directory: Path, captured: bool, *, method: str, counts: list[int], chunk: int | None = None, **fields: Any
) -> list[Tensor]:
    run = RunContext(seed=3, compute=CPU, classes_per_chunk=chunk)
    return set_tensors(METHODS[method].condense(tiny_data(counts), tiny_recipe(method, **fields), run))


def condense_sizes(directory: Path, captured: bool) -> list[Tensor]:
    recipes = [tiny_recipe("dm", ipc=ipc, lr=1.0 + ipc) for ipc in (1, 2, 3)]
    function = METHODS["dm"].condense_sizes
    assert function is not None
    return [condensed.images for condensed in function(tiny_data(UNEQUAL), recipes, RunContext(compute=CPU))]


def condense_with_pool(directory: Path, captured: bool) -> list[Tensor]:
    data, pool = tiny_data([10, 10]), directory / "pool"
    train_pool(data, pool, num_networks=2, network=NETWORK, epochs=2, batch_size=8, device="cpu", verbose=False)
    return set_tensors(METHODS["dm"].condense(data, tiny_recipe("dm", pool=str(pool)), RunContext(compute=CPU)))


def condense_resumed(directory: Path, captured: bool, *, method: str) -> list[Tensor]:
    """Interrupt and resume the captured run, but not the plain one."""
    data, recipe, condense = tiny_data(UNEQUAL), tiny_recipe(method), METHODS[method].condense
    if captured:
        run = RunContext(compute=CPU, directory=directory, job="job")
        run.stop.requested = True
        with pytest.raises(Interrupted):
            condense(data, recipe, run)
    return set_tensors(condense(data, recipe, RunContext(compute=CPU, directory=directory, job="job")))


def train(directory: Path, captured: bool, *, spec: str) -> list[Tensor]:
    """Train two networks in parallel, then two more with the same trainers. The last batch has one image."""
    data = DeviceDataset.from_data(tiny_data([10, 7]), CPU.device)
    protocol = Protocol(network=spec, epochs=1, batch_size=8)
    trainers = [Trainer(spec, data, protocol, CPU) for _ in range(2)]
    results = []
    for seed in (1, 2):
        trainings = [trainer.iter_train(seed, position) for position, trainer in enumerate(trainers)]
        for _ in train_in_parallel(trainings, CPU.device):
            pass
        for trainer in trainers:
            results += [trainer.weights.clone(), *(buffer.clone() for buffer in trainer.buffers.values())]
            results.append(torch.tensor(trainer.accuracy(data)))
    return results


def count_forgetting(directory: Path, captured: bool) -> list[Tensor]:
    data = DeviceDataset.from_data(tiny_data([10, 7]), CPU.device)
    counter = ForgettingCounter(len(data), CPU.device)
    trainer = Trainer(SPECS[0], data, Protocol(epochs=4, batch_size=8), CPU, forgetting=counter)
    trainer.train(1)
    first_counts = counter.counts_N.clone()
    trainer.train(2)
    return [first_counts, *counter.state.values()]


def score(directory: Path, captured: bool, **fields: Any) -> list[Tensor]:
    condensed = METHODS["dd"].condense(tiny_data([6, 3, 5]), tiny_recipe("dd"), RunContext(compute=CPU))
    protocol = Protocol(network=NETWORK, num_networks=2, **fields)
    return [torch.tensor(score_set(condensed, tiny_data([9, 9, 9]), protocol, RunContext(compute=CPU)).accuracies)]


def score_resumed(directory: Path, captured: bool, *, step: int) -> list[Tensor]:
    """Interrupt and resume the captured run. Three networks train in groups of two, in epochs of 2.5 batches."""
    data, protocol = tiny_data([5, 5]), Protocol(network=SPECS[1], num_networks=3, epochs=3, batch_size=4)
    if captured:
        run = RunContext(compute=CPU, directory=directory)
        run.progress = StopAtStep(run, step)
        with pytest.raises(Interrupted):
            score_set(data, data, protocol, run)
    return [torch.tensor(score_set(data, data, protocol, RunContext(compute=CPU, directory=directory)).accuracies)]


def rank(directory: Path, captured: bool) -> list[Tensor]:
    """Train networks of several architectures in parallel."""
    protocol = Protocol(num_networks=2, epochs=1, batch_size=8)
    ranking = rank_architectures(SPECS, tiny_data([6, 6]), tiny_data([9, 9]), protocol, RunContext(compute=CPU))
    return [torch.tensor(row.accuracy) for row in sorted(ranking.rows, key=lambda row: row.name)]


def make_cases() -> dict[str, Case]:
    """Return all cases by name."""
    cases: dict[str, Case] = {
        "several sizes": condense_sizes,
        "pool": condense_with_pool,
        "forgetting": count_forgetting,
        "ranking": rank,
        "score": functools.partial(score, epochs=2),
        "score with steps": functools.partial(score, steps=5, batch_size=4),
        "score with learned steps": functools.partial(score, learned_steps=True),
        "score by the modern protocol": functools.partial(score, **{**PROTOCOLS["modern"], "epochs": 4}),
        "dm, other features and objective": functools.partial(
            condense, method="dm", counts=UNEQUAL, objective="characteristic(frequencies=8)", features="attention"
        ),
    }
    for method in DISTINCT_METHODS:
        if method != "random":  # which has no steps
            cases[method] = functools.partial(condense, method=method, counts=[6, 6, 6])
            cases[f"{method}, unequal classes"] = functools.partial(condense, method=method, counts=[6, 1, 5])
    for method in ("dm", "dc", "dsa", "dcc", "cafe", "ld", "dd"):
        fields = {"method": method, "counts": UNEQUAL, "network": SPECS[1]}
        cases[f"{method}, batch norm"] = functools.partial(condense, **fields)  # type: ignore[arg-type]
    cases["mmd, other objective"] = functools.partial(condense, method="mmd", counts=[6, 6], objective="kernel")
    for method in ("dm", "dsa"):
        cases[f"{method}, chunks"] = functools.partial(condense, method=method, counts=UNEQUAL, chunk=2)
    for method in ("dm", "dsa", "idc", "mtt", "dd", "ld", "mmd", "idm", "gmmn", "vae", "kip", "gtn"):
        cases[f"{method}, resumed"] = functools.partial(condense_resumed, method=method)
    for spec in SPECS:
        cases[f"train {spec}"] = functools.partial(train, spec=spec)
    for step in (2, 6, 14, 20):
        cases[f"score, resumed at step {step}"] = functools.partial(score_resumed, step=step)
    return cases


CASES = make_cases()


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_equal_plain_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    monkeypatch.setattr("condenset.training.evaluation.num_parallel", lambda *_: 2)
    monkeypatch.setattr("condenset.search.ranker.max_parallel", lambda _: len(SPECS))
    monkeypatch.setattr("condenset.methods.matching.queue.NUM_NETWORKS", 2)  # trained ones are sampled again
    trained: list[Tensor] = []
    predict = Trainer.predict

    def record_state(trainer: Trainer, *args: Any, **options: Any) -> Tensor:
        trained.extend(tensor.clone() for tensor in trainer.state.values())
        return predict(trainer, *args, **options)

    monkeypatch.setattr(Trainer, "predict", record_state)
    for directory in ("plain", "captured"):
        (tmp_path / directory).mkdir()
    expected = [*CASES[name](tmp_path / "plain", False), *trained]
    trained.clear()
    with monkeypatch.context() as patched:
        graphs = capture_on_cpu(patched)
        actual = [*CASES[name](tmp_path / "captured", True), *trained]
    assert graphs
    assert len(actual) == len(expected)
    assert all(torch.equal(tensor, other) for tensor, other in zip(actual, expected, strict=True))


def test_finished_objects_are_freed_without_the_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs hold GPU memory that Python does not know about, so reference cycles would exhaust it."""
    capture_on_cpu(monkeypatch)
    alive: weakref.WeakSet[object] = weakref.WeakSet()
    for owner in (Trainer, GradientMatching):

        def record(self: Any, *args: Any, init: Any = owner.__init__, **options: Any) -> None:
            init(self, *args, **options)
            alive.add(self)

        monkeypatch.setattr(owner, "__init__", record)
    data, protocol = tiny_data([6, 6]), Protocol(network=NETWORK, num_networks=2, epochs=2, batch_size=3)
    gc.disable()
    try:
        condensed = METHODS["dsa"].condense(data, tiny_recipe("dsa"), RunContext(compute=CPU))
        score_set(condensed, data, protocol, RunContext(compute=CPU))
        assert not alive
    finally:
        gc.enable()
