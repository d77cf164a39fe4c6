"""Distribution matching that samples from a pool of trained networks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import condenset as cs
from condenset import augment, networks
from condenset.engine import ComputeDevice, rng
from condenset.io.files import json_hash, read_tensors, write_tensors
from condenset.methods.matching.dm import check_recipe, condense
from condenset.methods.matching.network_source import estimate_network_bytes, prepare_networks
from condenset.methods.pools.accuracy_groups import in_group
from condenset.methods.pools.pool import POOL_FILE, NetworkPool
from condenset.methods.samplers import TrainedNetworks, build_on_meta
from condenset.pipeline.condensing import load_or_condense
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from helpers.interruption import StopAtStep
from helpers.local_engine import LocalEngine
from helpers.pools import COUNTS, CPU, SPEC, make_pool, make_pool_problem, pool_recipe
from helpers.reference_dm import matching_loss, tiny_data


def test_weights_of_a_group_lack_the_classifier(trained_pool: NetworkPool) -> None:
    embedding = build_on_meta(SPEC, tiny_data(COUNTS), embedding=True)
    all_weights = trained_pool.weights(trained_pool.states, embedding, CPU)
    assert len(all_weights) == len(trained_pool.states) == trained_pool.group_sizes()["all"]
    full_layout = networks.FlatParameters(networks.build(SPEC, channels=3, size=8, num_classes=3), CPU.device)
    layout = networks.FlatParameters(embedding, CPU.device)
    for weights_P, state in zip(all_weights, trained_pool.states, strict=True):
        stored_P = read_tensors(state.path)[0]["weights"][state.row]
        stored = full_layout.unflatten(stored_P, torch.float32)
        parameters = layout.unflatten(weights_P, torch.float32)
        assert all(torch.equal(parameters[name], stored[name]) for name in parameters)
    group, size = next((name, size) for name, size in trained_pool.group_sizes().items() if size)
    rows = [row for row, state in enumerate(trained_pool.states) if in_group(state.accuracy, group)]
    assert len(rows) == size
    assert torch.equal(trained_pool.weights(trained_pool.group(group), embedding, CPU), all_weights[rows])


def test_sampled_network_is_a_function_of_seed_and_step(trained_pool: NetworkPool) -> None:
    num, indices = len(trained_pool.states), []
    for seed in (3, 4):
        sampler = make_pool_problem(pool_recipe(trained_pool), seed=seed).networks
        assert isinstance(sampler, TrainedNetworks)
        indices.append([int(rng.random_index(rng.make_key(seed, "network"), step, num)) for step in range(80)])
        for step, index in enumerate(indices[-1]):
            expected = sampler.parameters.unflatten(sampler.weights_EST[index, 0], torch.float32)
            sampled = sampler.sample(torch.tensor(step), torch.float32)
            assert all(torch.equal(sampled[name], expected[name]) for name in expected)
    assert set(indices[0]) == set(range(num))  # every network is used
    assert indices[0] != indices[1]


def test_random_index_is_uniform() -> None:
    key = rng.make_key(0, "any")
    counts = torch.cat([rng.random_index(key, step, 5) for step in range(1000)]).bincount(minlength=5)
    assert len(counts) == 5
    assert (counts - 200).abs().max() < 50
    assert all(int(rng.random_index(key, step, 1)) == 0 for step in range(5))


def make_single_pool(pool: NetworkPool, directory: Path, index: int) -> NetworkPool:
    """Copy one state of a pool to a new pool."""
    directory.mkdir()
    state = pool.states[index]
    shutil.copy(pool.directory / POOL_FILE, directory)
    states = [{"step": state.step, "accuracy": state.accuracy}]
    weights = read_tensors(state.path)[0]["weights"][state.row][None]
    metadata = {"pool_hash": json_hash(dict(pool.metadata)), "seconds": 1.0, "states": states}
    write_tensors(directory / "0000.safetensors", {"weights": weights}, {"pool": json.dumps(metadata)})
    return NetworkPool.load(directory)


@pytest.mark.parametrize("strategy", [augment.DEFAULT_STRATEGY, "none"])
def test_steps_equal_algorithm_1_with_the_networks_of_the_pool(
    trained_pool: NetworkPool, tmp_path: Path, strategy: str
) -> None:
    pool = make_single_pool(trained_pool, tmp_path / "single", -1)
    matching, data = make_pool_problem(pool_recipe(pool, augment=strategy)), tiny_data(COUNTS)
    network = networks.build(SPEC, channels=3, size=8, num_classes=3)
    layout = networks.FlatParameters(network, CPU.device)
    stored_P = read_tensors(pool.states[0].path)[0]["weights"][0]
    network.load_state_dict(layout.unflatten(stored_P, torch.float32))
    images = matching.sets.images_KICHW.clone()
    velocity = torch.zeros_like(images)
    for step in range(4):
        real = []
        for label, count in enumerate(COUNTS):
            stream = torch.tensor([label])
            index = rng.sample_without_replacement(matching.real_key, step, stream, torch.tensor([count]), count, 5)[0]
            real.append((data.images[data.labels == label][index].float() / 255 - 0.5) / 0.25)
        synthetic = [class_images.clone().requires_grad_() for class_images in images]
        uniforms = rng.uniform(matching.augment_key, step, torch.arange(3), augment.NUM_UNIFORMS)
        loss = matching_loss(network, real, synthetic, stages=augment.parse_strategy(strategy), uniforms=uniforms)
        velocity = 0.5 * velocity + torch.stack(torch.autograd.grad(loss, synthetic))
        images = images - velocity
        matching.step()
        torch.testing.assert_close(matching.losses[step], loss.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(matching.sets.images_KICHW, images, rtol=1e-3, atol=1e-4)


def test_run_can_be_resumed_after_the_pool_has_moved(
    trained_pool: NetworkPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    data = tiny_data(COUNTS)
    expected = condense(data, pool_recipe(trained_pool), RunContext(seed=1, compute=CPU))
    shutil.copytree(trained_pool.directory, tmp_path / "moved")
    for directory, stop_step in ((trained_pool.directory, 2), (tmp_path / "moved", 99)):
        recipe = pool_recipe(NetworkPool.load(directory))
        run = RunContext(seed=1, compute=CPU, directory=tmp_path, job="dm-2", recipe=recipe.identity())
        run.progress = StopAtStep(run, stop_step)
        with pytest.raises(Interrupted) if stop_step < 4 else contextlib.nullcontext():
            condensed = condense(data, recipe, run)
    assert torch.equal(condensed.images, expected.images)
    states = trained_pool.states
    counts = {"networks": trained_pool.num_networks, "states": len(states)}
    entry = {"fingerprint": trained_pool.fingerprint, "group": "all", **counts}
    assert expected.provenance["pool"] == entry | {"seconds": trained_pool.seconds(states)}


def test_several_sizes_can_be_resumed_after_the_pool_has_moved(
    trained_pool: NetworkPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    data = tiny_data(COUNTS)
    expected = [condense(data, pool_recipe(trained_pool, ipc=ipc), RunContext(seed=1, compute=CPU)) for ipc in (1, 2)]
    shutil.copytree(trained_pool.directory, tmp_path / "moved")
    paths = [tmp_path / f"{ipc}.safetensors" for ipc in (1, 2)]
    for directory, stop_step in ((trained_pool.directory, 2), (tmp_path / "moved", 99)):
        first, second = (pool_recipe(NetworkPool.load(directory), ipc=ipc) for ipc in (1, 2))
        run = RunContext(seed=1, compute=CPU, directory=tmp_path, job="dm-1")
        run.progress = StopAtStep(run, stop_step)
        with pytest.raises(Interrupted) if stop_step < 4 else contextlib.nullcontext():
            load_or_condense(paths[0], "dm", first, data, run, {paths[1]: second})
    for path, alone in zip(paths, expected, strict=True):
        torch.testing.assert_close(cs.CondensedSet.load(path).images, alone.images, rtol=1e-3, atol=1e-4)


def test_pool_can_be_given_as_object_or_path(trained_pool: NetworkPool, tmp_path: Path) -> None:
    data = tiny_data(COUNTS)
    fields: dict[str, Any] = {"ipc": 1, "network": SPEC, "iterations": 1, "batch_size": 4, "device": "cpu"}
    by_object, by_path, by_text = (
        cs.condense(data, pool=pool, **fields)
        for pool in (trained_pool, trained_pool.directory, str(trained_pool.directory))
    )
    assert by_object.provenance["recipe"]["pool"] == str(trained_pool.directory)
    assert torch.equal(by_object.images, by_text.images)
    assert torch.equal(by_path.images, by_text.images)
    memory = cs.Memory(pool=trained_pool, **fields)
    memory.add(data)
    memory.save(tmp_path / "memory.safetensors")
    assert torch.equal(cs.Memory.load(tmp_path / "memory.safetensors").set.images, memory.set.images)
    with pytest.raises(cs.UserError, match="group must come with the pool that it selects from, but got '60-70'"):
        cs.condense(data, ipc=1, group="60-70")


def test_final_needs_states_at_equal_intervals(trained_pool: NetworkPool) -> None:
    with pytest.raises(cs.UserError, match="sampler final must have states at equal intervals"):
        make_pool_problem(pool_recipe(trained_pool, sampler="final"))


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"sampler": "interpolated"}, "interpolated"),
        ({"sampler": "checkpoints", "calibration": 1.0}, "checkpoints with calibration"),
    ],
)
def test_sampler_refuses_a_pool_of_accuracy_groups(
    trained_pool: NetworkPool, fields: dict[str, Any], sampler: str
) -> None:
    recipe = pool_recipe(trained_pool, **fields)
    message = (
        rf"\Athe sampler {sampler} must have states at equal intervals, but .* has none; "
        r"give a new directory as pool, in which its networks are trained\Z"
    )
    with pytest.raises(cs.UserError, match=message):
        check_recipe(tiny_data(COUNTS), recipe, CPU, None)
    with pytest.raises(cs.UserError, match=message):
        make_pool_problem(recipe)


@pytest.mark.parametrize(
    "fields",
    [{"sampler": "final"}, {"sampler": "interpolated"}, {"sampler": "checkpoints", "calibration": 0.5}],
)
def test_group_without_effect_is_refused(trained_pool: NetworkPool, fields: dict[str, Any]) -> None:
    message = r"\Agroup must be all unless the sampler is checkpoints and the calibration is 0, but got '60-70'\Z"
    with pytest.raises(cs.UserError, match=message):
        pool_recipe(trained_pool, group="60-70", **fields)
    assert pool_recipe(trained_pool, group="60-70").sampler == "checkpoints"


def test_memory_estimate_includes_the_pool(trained_pool: NetworkPool) -> None:
    data, recipe = tiny_data(COUNTS), pool_recipe(trained_pool)
    group = next(name for name, size in trained_pool.group_sizes().items() if size)
    for name in (group, "all"):
        expected = make_pool_problem(pool_recipe(trained_pool, group=name)).networks
        assert isinstance(expected, TrainedNetworks)
        num_bytes = estimate_network_bytes(dataclasses.replace(recipe, group=name), data, CPU)
        assert num_bytes == expected.weights_EST.nbytes > 0


def test_batch_norm_and_bfloat16(tmp_path: Path) -> None:
    spec, data = "convnet(width=8, depth=2, norm='batch')", tiny_data(COUNTS)
    batch_norm_pool = make_pool(tmp_path / "batch", num_networks=1, network=spec, epochs=1)
    condensed = condense(data, pool_recipe(batch_norm_pool, network=spec), RunContext(compute=CPU))
    assert condensed.images.isfinite().all()
    bfloat16 = ComputeDevice.select("cpu", "bfloat16")
    embedding = build_on_meta(spec, data, embedding=True)
    assert batch_norm_pool.weights(batch_norm_pool.states, embedding, bfloat16).dtype == torch.float32
    pool = make_pool(tmp_path / "instance", num_networks=1, epochs=1)
    fine, coarse = (
        pool.weights(pool.states, build_on_meta(SPEC, data, embedding=True), compute) for compute in (CPU, bfloat16)
    )
    assert torch.equal(coarse, fine.bfloat16())


def test_worker_uses_the_pool_at_the_same_path_only_if_it_is_the_same(
    trained_pool: NetworkPool, tmp_path: Path
) -> None:
    shutil.copytree(trained_pool.directory, tmp_path / "pool")
    recipe = pool_recipe(NetworkPool.load(tmp_path / "pool"))
    run = RunContext(compute=CPU, engine=LocalEngine(), directory=tmp_path)
    transfer = prepare_networks(tiny_data(COUNTS), recipe, run)
    assert transfer is not None
    assert transfer.install(recipe, tmp_path / "worker").pool == str(tmp_path / "pool")
    (tmp_path / "pool" / "0002.safetensors").unlink()  # as on a machine with another pool
    installed = transfer.install(recipe, tmp_path / "worker").pool
    assert installed == str(tmp_path / "worker" / "pool")
    assert NetworkPool.load(installed).fingerprint == trained_pool.fingerprint
