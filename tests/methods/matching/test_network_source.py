"""Where the networks of a run come from: a pool that trains itself is stored, resumed, reused and timed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.io.files import read_tensors, write_tensors
from condenset.methods import DMRecipe
from condenset.methods.matching import network_source
from condenset.methods.matching.dm import condense, estimate_memory, make_problem
from condenset.methods.matching.network_source import estimate_network_bytes
from condenset.methods.matching.queue import NetworkQueue
from condenset.methods.pools.pool import NetworkPool
from condenset.methods.pools.pool_training import expert_protocol
from condenset.methods.samplers import TrainedNetworks
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.dataset import DeviceDataset
from condenset.training.trainer import Trainer
from helpers.interruption import StopAtStep
from helpers.pools import pool_files_equal, set_pool_seconds
from helpers.reference_dm import tiny_data
from helpers.training_steps import record_training_steps

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=4, depth=1)"
DATA = tiny_data([6, 6])


@pytest.fixture(autouse=True)
def few_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_source, "NUM_CHECKPOINTS", 3)


def make_recipe(**fields: Any) -> DMRecipe:
    values = {"ipc": 2, "network": SPEC, "iterations": 3, "batch_size": 4, "sampler": "checkpoints"}
    return DMRecipe(**{**values, "calibration": 1.0, "pool_size": 2, "pool_epochs": 6, **fields})


def make_run(directory: Path | None = None) -> RunContext:
    return RunContext(seed=1, compute=CPU, directory=directory, job="job")


def find_pool(directory: Path) -> NetworkPool:
    (path,) = (directory / "networks").iterdir()
    return NetworkPool.load(path)


def train_expert(number: int) -> list[torch.Tensor]:
    """Return the weights of a network of the pool before the first epoch and after every epoch."""
    protocol = expert_protocol(DATA, network=SPEC, epochs=6)
    trainer = Trainer(SPEC, DeviceDataset.from_data(DATA, CPU.device), protocol, CPU)
    states: list[torch.Tensor] = []

    def store_initial(state: Mapping[str, torch.Tensor]) -> int:
        states.append(state["weights"].clone())
        return 0

    def store(_: int) -> None:
        states.append(trainer.weights.clone())

    trainer.train(1, "pool", number, load_state=store_initial, after_epoch=store)
    return states


@pytest.mark.parametrize(
    ("sampler", "epochs", "lookahead"),
    [("checkpoints", [0, 2, 4, 6], 1), ("interpolated", [0, 6], None), ("final", [6], None)],
)
def test_sampler_reads_only_the_states_that_it_uses(sampler: str, epochs: list[int], lookahead: int | None) -> None:
    matching = make_problem(DATA, [make_recipe(sampler=sampler)], make_run())
    assert isinstance(matching.networks, TrainedNetworks)
    assert (matching.networks.kind, matching.networks.lookahead) == (sampler, lookahead)
    for weights_ST, states in zip(matching.networks.weights_EST, map(train_expert, range(2)), strict=True):
        assert torch.equal(weights_ST, torch.stack([states[epoch] for epoch in epochs]))


def test_experts_train_by_the_modern_protocol() -> None:
    protocol = expert_protocol(DATA, network=SPEC, epochs=6)
    assert (protocol.schedule, protocol.total_epochs, protocol.batch_size) == ("modern", 6, 64)
    assert (protocol.augment, protocol.cutmix, protocol.network) == ("color+crop", 0.5, SPEC)


def test_pool_is_stored_in_the_run_directory_and_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = condense(DATA, make_recipe(), make_run())
    batch_sizes = record_training_steps(monkeypatch)
    first = condense(DATA, make_recipe(), make_run(tmp_path))
    assert torch.equal(first.images, in_memory.images)
    assert len(batch_sizes) == 12  # two networks of six epochs with one step each
    pool = find_pool(tmp_path)
    assert (pool.num_networks, pool.num_states) == (2, 4)
    batch_sizes.clear()
    again, fewer, other_set = (
        condense(DATA, make_recipe(**fields), make_run(tmp_path)) for fields in ({}, {"pool_size": 1}, {"ipc": 1})
    )
    assert not batch_sizes
    assert torch.equal(again.images, first.images)
    assert not torch.equal(fewer.images, first.images)
    assert len(other_set) == 2
    condense(DATA, make_recipe(pool_size=3), make_run(tmp_path))
    assert len(batch_sizes) == 6  # the third network
    assert find_pool(tmp_path).num_networks == 3
    batch_sizes.clear()
    condense(DATA, make_recipe(pool_epochs=2), make_run(tmp_path))
    assert len(batch_sizes) == 4  # another pool
    assert len(list((tmp_path / "networks").iterdir())) == 2


def test_one_pool_serves_all_samplers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_sizes = record_training_steps(monkeypatch)
    for sampler in ("interpolated", "checkpoints", "final"):
        condense(DATA, make_recipe(sampler=sampler), make_run(tmp_path))
    assert len(batch_sizes) == 12  # two networks of six epochs with one step each
    assert find_pool(tmp_path).num_states == 4


def test_networks_beyond_the_pool_size_are_not_read(tmp_path: Path) -> None:
    make_problem(DATA, [make_recipe(pool_size=2)], make_run(tmp_path))
    pool = find_pool(tmp_path)
    content, metadata = read_tensors(pool.states[-1].path)
    content["weights"].fill_(torch.nan)
    write_tensors(pool.states[-1].path, content, metadata)
    matching = make_problem(DATA, [make_recipe(pool_size=1)], make_run(tmp_path))
    assert isinstance(matching.networks, TrainedNetworks)
    assert len(matching.networks.weights_EST) == 1
    with pytest.raises(cs.UserError, match="does not contain the weights of its network"):
        make_problem(DATA, [make_recipe(pool_size=2)], make_run(tmp_path))


@pytest.mark.parametrize("sampler", ["final", "interpolated", "checkpoints", "queue"])
def test_memory_of_networks_is_estimated_before_they_are_trained(tmp_path: Path, sampler: str) -> None:
    recipe = make_recipe(sampler=sampler)
    estimate = estimate_network_bytes(recipe, DATA, CPU)
    sampled = make_problem(DATA, [recipe], make_run(tmp_path)).networks
    weights = sampled.weights_QT if isinstance(sampled, NetworkQueue) else sampled.weights_EST  # type: ignore[attr-defined]
    assert estimate == weights.nbytes > 0
    if sampler != "queue":
        by_path = make_recipe(sampler=sampler, pool=str(find_pool(tmp_path).directory))
        assert estimate_network_bytes(by_path, DATA, CPU) == estimate


def test_memory_estimate_includes_the_networks() -> None:
    random, one, two = (
        estimate_memory(DATA, make_recipe(calibration=0, **fields), CPU, None)
        for fields in ({"sampler": "random"}, {"pool_size": 1}, {"pool_size": 2})
    )
    assert two - one == one - random == estimate_network_bytes(make_recipe(pool_size=1), DATA, CPU)


def test_memory_estimate_includes_the_images_that_calibrate() -> None:
    one, most, every, none = (
        estimate_memory(DATA, make_recipe(ipc=6, **fields), CPU, None)
        for fields in ({"calibration_images": 1}, {"calibration_images": 9}, {}, {"calibration": 0})
    )
    assert none < one < most == every


@pytest.mark.parametrize("stops", [(1, 6, 8), (13,)])
def test_interrupted_pool_resumes_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: tuple[int, ...]
) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    recipe, (undisturbed, interrupted) = make_recipe(iterations=14), (tmp_path / "a", tmp_path / "b")
    expected = condense(DATA, recipe, make_run(undisturbed))
    batch_sizes = record_training_steps(monkeypatch)
    for stop in stops:
        run = make_run(interrupted)
        run.progress = StopAtStep(run, stop)
        with pytest.raises(Interrupted):
            condense(DATA, recipe, run)
    resumed = condense(DATA, recipe, make_run(interrupted))
    assert torch.equal(resumed.images, expected.images)
    assert len(batch_sizes) == 12  # no step is repeated
    paths = [find_pool(directory).directory for directory in (undisturbed, interrupted)]
    assert pool_files_equal(*paths)


def test_time_of_the_pool_is_separate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.methods.problem.run_loop", lambda *_: 5.0)
    provenance = condense(DATA, make_recipe(), make_run(tmp_path)).provenance
    pool = find_pool(tmp_path)
    assert provenance["seconds"] == 5
    assert provenance["pool"] == {"networks": 2, "seconds": pool.seconds(pool.states)}
    assert "pool" not in condense(DATA, make_recipe(sampler="random", calibration=0), make_run()).provenance


def test_time_of_the_pool_is_that_of_the_networks_in_use(tmp_path: Path) -> None:
    stopped = make_run(tmp_path)
    stopped.progress = StopAtStep(stopped, 8)  # in the second network
    with pytest.raises(Interrupted):
        condense(DATA, make_recipe(pool_size=3), stopped)
    set_pool_seconds(find_pool(tmp_path).directory, [100.0])
    resumed = condense(DATA, make_recipe(pool_size=3), make_run(tmp_path)).provenance["pool"]
    assert 100 < resumed["seconds"] < 200
    pool = set_pool_seconds(find_pool(tmp_path).directory, [100.0, 20.0, 3.0])
    one, all_networks = (condense(DATA, make_recipe(pool_size=size), make_run(tmp_path)) for size in (1, 3))
    assert one.provenance["pool"] == {"networks": 1, "seconds": 100}
    assert all_networks.provenance["pool"] == {"networks": 3, "seconds": 123}
    by_path = condense(DATA, make_recipe(pool=str(pool.directory)), make_run()).provenance["pool"]
    assert by_path == {"fingerprint": pool.fingerprint, "networks": 3, "seconds": 123}


def test_a_class_may_have_one_image() -> None:
    condensed = condense(tiny_data([6, 1]), make_recipe(ipc=1), make_run())
    assert condensed.images.isfinite().all()


def test_sampler_needs_a_built_in_network() -> None:
    def my_network(channels: int, size: int, num_classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * size**2, num_classes))

    for sampler in ("checkpoints", "queue"):
        with pytest.raises(cs.UserError, match=rf"\Athe sampler {sampler} must have a built-in network, but got 'my_"):
            cs.condense(DATA, network=my_network, sampler=sampler, ipc=1, device="cpu", verbose=False)


def test_several_sizes_share_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch_sizes = record_training_steps(monkeypatch)
    recipes = [make_recipe(ipc=ipc, partition=2) for ipc in (1, 2)]
    together = cs.METHODS["dm"].condense_sizes(DATA, recipes, make_run(tmp_path))  # type: ignore[misc]
    assert len(batch_sizes) == 12
    for condensed, recipe in zip(together, recipes, strict=True):
        alone = condense(DATA, recipe, make_run(tmp_path))
        torch.testing.assert_close(condensed.images, alone.images, rtol=1e-3, atol=1e-4)
    assert len(batch_sizes) == 12
