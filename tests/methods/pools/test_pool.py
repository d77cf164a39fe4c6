"""Pools of trained networks: training, storage, groups, and invalid pools."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.io.directories import lock_directory
from condenset.io.files import json_hash, read_tensors, write_tensors
from condenset.methods import METHODS, DMRecipe, make_recipe
from condenset.methods.matching.dm import condense
from condenset.methods.pools import network_training as pool_networks
from condenset.methods.pools.accuracy_groups import EDGES, group_names, in_group
from condenset.methods.pools.pool import POOL_FILE, NetworkPool
from condenset.methods.pools.pool_training import fill_pool, pool_protocol
from condenset.methods.samplers import build_on_meta
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.interruption import StopAtStep
from helpers.pools import (
    COUNTS,
    CPU,
    SPEC,
    TRAINING,
    change_pool_file,
    make_pool,
    make_pool_problem,
    pool_recipe,
    set_pool_seconds,
)
from helpers.reference_dm import tiny_data
from helpers.training_steps import record_training_steps


def test_groups_by_accuracy() -> None:
    names = group_names(EDGES)
    assert names == ["10-20", "20-30", "30-40", "40-50", "50-60", "60-70", "70-100"]
    accuracies = (0.0999, 0.1, 0.1999, 0.2, 0.29, 0.3, 0.7, 1.0)
    groups = [next((name for name in names if in_group(accuracy, name)), None) for accuracy in accuracies]
    assert groups == [None, "10-20", "10-20", "20-30", "20-30", "30-40", "70-100", "70-100"]
    assert all(in_group(accuracy, "all") for accuracy in accuracies)
    assert group_names([2.5, 97]) == ["2.5-97", "97-100"]
    for edges in ((), (50, 50), (60, 50), (-1, 5), (100,)):
        with pytest.raises(cs.UserError, match="edges must be"):
            group_names(edges)
    for group in ("70", "70-60", "a-b", "10-120", "1-2-3"):
        with pytest.raises(cs.UserError, match="group must be all, or accuracies in percent"):
            DMRecipe(ipc=1, group=group)


def test_states_are_the_first_of_each_group_and_the_last(trained_pool: NetworkPool) -> None:
    train, val = cs.train_val_split(tiny_data(COUNTS), 0.1, seed=0)
    protocol = pool_protocol(train, **TRAINING)
    trainer = Trainer(SPEC, DeviceDataset.from_data(train, CPU.device), protocol, CPU)
    history: list[tuple[int, float, Tensor]] = []
    num_steps = 0
    for num_steps in trainer.iter_train(0, "pool", 1):
        if num_steps < 5 or num_steps % 5 == 0:  # after each step of the first epoch, then after each epoch
            accuracy = trainer.accuracy(DeviceDataset.from_data(val, CPU.device))
            history.append((num_steps, accuracy, trainer.weights.clone()))
    expected: list[tuple[int, float, Tensor]] = []
    for state in history:
        group = next((name for name in group_names(EDGES) if in_group(state[1], name)), None)
        is_first = group and not any(in_group(accuracy, group) for _, accuracy, _ in expected)
        if state is history[-1] or is_first:
            expected.append(state)
    states = [state for state in trained_pool.states if state.path.stem == "0001"]
    assert [(state.step, state.accuracy) for state in states] == [(step, accuracy) for step, accuracy, _ in expected]
    assert len(states) > 1
    weights = read_tensors(states[0].path)[0]["weights"]
    assert torch.equal(weights, torch.stack([state[2] for state in expected]))
    assert num_steps == 40


def test_networks_are_stored_one_by_one(
    tmp_path: Path, trained_pool: NetworkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny_data(COUNTS)
    run = RunContext(compute=CPU)
    run.progress = StopAtStep(run, 45)  # during the second network
    with pytest.raises(Interrupted):
        fill_pool(data, tmp_path, 3, pool_protocol(data, **TRAINING), run, edges=EDGES)
    assert NetworkPool.load(tmp_path).num_networks == 1
    time_before = (tmp_path / "0000.safetensors").stat().st_mtime_ns
    for name in (".0001.safetensors.x.tmp", ".pool.json.x.tmp", ".checkpoint.x.tmp"):
        (tmp_path / name).touch()  # as a kill leaves them
    assert make_pool(tmp_path).fingerprint == trained_pool.fingerprint
    assert (tmp_path / "0000.safetensors").stat().st_mtime_ns == time_before
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"pool.json", "0000.safetensors", "0001.safetensors", "0002.safetensors"}
    monkeypatch.setattr(Trainer, "iter_train", None)
    assert make_pool(tmp_path, num_networks=2).num_networks == 3  # trained already


def test_events_record_the_seconds_of_every_network(tmp_path: Path) -> None:
    data = tiny_data(COUNTS)
    for num in (1, 3):  # as after an interruption
        run = RunContext(compute=CPU, directory=tmp_path / "part", job="pool")
        (tmp_path / "part").mkdir(exist_ok=True)
        fill_pool(data, tmp_path / "networks", num, pool_protocol(data, **TRAINING), run, edges=EDGES)
    events = run.network_events()
    assert [event["net"] for event in events] == [0, 1, 2]
    assert all(event["seconds"] > 0 for event in events)


def test_directory_in_use_by_another_process_is_refused(tmp_path: Path) -> None:
    temporary = tmp_path / ".0000.safetensors.x.tmp"
    temporary.touch()
    with lock_directory(tmp_path), pytest.raises(cs.UserError, match="another process is using"):
        make_pool(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [temporary.name]


def assert_equal_pools(pool: NetworkPool, other: NetworkPool) -> None:
    assert pool.fingerprint == other.fingerprint
    for states in zip(pool.states, other.states, strict=True):
        assert torch.equal(*(read_tensors(state.path)[0]["weights"][state.row] for state in states))


def test_training_in_parallel_does_not_change_the_result(
    tmp_path: Path, trained_pool: NetworkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_networks, "num_parallel", lambda *_: 2)
    assert_equal_pools(make_pool(tmp_path), trained_pool)


@pytest.mark.parametrize("num_parallel", [1, 2])
def test_interruptions_do_not_change_the_result(
    num_parallel: int, tmp_path: Path, trained_pool: NetworkPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop in the first epoch, where most states are stored, at the end of an epoch, and later."""
    monkeypatch.setattr(pool_networks, "num_parallel", lambda *_: num_parallel)
    data, protocol = tiny_data(COUNTS), pool_protocol(tiny_data(COUNTS), **TRAINING)
    steps = record_training_steps(monkeypatch)
    for number in (2, 3, 5, 8, 10, 11, 25, 39, 43, 45):  # an epoch has 5 steps
        run = RunContext(compute=CPU)
        run.progress = StopAtStep(run, num_parallel * number)
        with pytest.raises(Interrupted):
            fill_pool(data, tmp_path, 3, protocol, run, edges=EDGES)
        assert (tmp_path / "checkpoint").exists()
        NetworkPool.load(tmp_path)  # an unfinished pool is valid
    pool = make_pool(tmp_path)
    assert len(steps) == 3 * 40  # no step runs twice
    assert not (tmp_path / "checkpoint").exists()
    assert_equal_pools(pool, trained_pool)


def test_checkpoint_of_another_network_is_ignored(tmp_path: Path, trained_pool: NetworkPool) -> None:
    run = RunContext(compute=CPU)
    run.progress = StopAtStep(run, 11)
    with pytest.raises(Interrupted):
        fill_pool(tiny_data(COUNTS), tmp_path, 3, pool_protocol(tiny_data(COUNTS), **TRAINING), run, edges=EDGES)
    for name in ("0000.safetensors", POOL_FILE):
        shutil.copy(trained_pool.directory / name, tmp_path)
    assert make_pool(tmp_path).fingerprint == trained_pool.fingerprint


def test_a_classifier_of_other_classes_is_refused(trained_pool: NetworkPool) -> None:
    data, fewer = tiny_data(COUNTS), tiny_data(COUNTS[:2])
    reordered = dataclasses.replace(data, class_names=data.class_names[::-1])
    trained_pool.check_compatible(SPEC, data, classifier=True, labels=True)
    with pytest.warns(UserWarning, match="were trained on other images"):
        trained_pool.check_compatible(SPEC, fewer)
    with pytest.warns(UserWarning, match="were trained on other images"):
        trained_pool.check_compatible(SPEC, reordered, classifier=True)
    with pytest.raises(cs.UserError, match=r"\Aimages must have 3 classes as the pool has, but got 2\Z"):
        trained_pool.check_compatible(SPEC, fewer, classifier=True)
    message = r"\Awith a calibration, the classes must be those of the pool .* in the same order, but got \['class 2'"
    with pytest.raises(cs.UserError, match=message):
        trained_pool.check_compatible(SPEC, reordered, classifier=True, labels=True)


def test_incompatible_pools_are_refused(trained_pool: NetworkPool, tmp_path: Path) -> None:
    data = tiny_data(COUNTS)
    empty_group = next(name for name, size in trained_pool.group_sizes().items() if not size)
    with pytest.raises(cs.UserError, match=rf"no network in group '{empty_group}'; its groups are 10-20"):
        make_pool_problem(pool_recipe(trained_pool, group=empty_group))
    with pytest.raises(cs.UserError, match=r"network must be convnet\(width=8.*, but got .convnet\(width=4"):
        make_pool_problem(pool_recipe(trained_pool, network="convnet(width=4, depth=2)"))
    with pytest.raises(cs.UserError, match=r"must have the shape \(3, 8, 8\) of the pool .*, but got \(1, 8, 8\)"):
        condense(tiny_data(COUNTS, channels=1), pool_recipe(trained_pool), RunContext(compute=CPU))
    with pytest.warns(UserWarning, match="were trained on other images than these"):
        condense(tiny_data(COUNTS, seed=5), pool_recipe(trained_pool), RunContext(compute=CPU))
    with pytest.raises(cs.UserError, match="is not a pool of networks"):
        condense(data, DMRecipe(network=SPEC, pool=str(tmp_path)), RunContext(compute=CPU))
    with pytest.raises(cs.UserError, match=r"holds a pool with other settings \(epochs, seed\)"):
        make_pool(trained_pool.directory, seed=1, epochs=2)
    (tmp_path / "note.txt").touch()
    with pytest.raises(cs.UserError, match="not empty and not a pool"):
        make_pool(tmp_path)
    with pytest.raises(cs.UserError, match="learned_steps must be false"):
        make_pool(tmp_path / "d", learned_steps=True)
    with pytest.raises(cs.UserError, match="num_networks must be"):
        make_pool(tmp_path / "b", num_networks=0)


def test_damaged_files_are_named(trained_pool: NetworkPool, tmp_path: Path) -> None:
    directory = tmp_path / "pool"
    shutil.copytree(trained_pool.directory, directory)
    path = directory / "0001.safetensors"
    tensors, metadata = read_tensors(path)
    for weights in (tensors["weights"][:, 1:], tensors["weights"][:-1], tensors["weights"][0]):
        write_tensors(path, {"weights": weights.clone()}, metadata)
        with pytest.raises(cs.UserError, match=r"0001\.safetensors"):
            make_pool_problem(pool_recipe(NetworkPool.load(directory)))
    write_tensors(path, tensors, {"pool": metadata["pool"].replace('"pool_hash": "', '"pool_hash": "x')})
    with pytest.raises(cs.UserError, match=r"0001\.safetensors belongs to another pool"):
        NetworkPool.load(directory)
    for content in (b"", b"x" * 100, path.read_bytes()[:-9]):
        path.write_bytes(content)
        with pytest.raises(cs.UserError, match=r"0001\.safetensors.*; delete it to train the network again"):
            NetworkPool.load(directory)
    for text in (None, "[]", "{}", '{"states": [{"step": 1}], "seconds": 1, "pool_hash": ""}'):
        write_tensors(path, tensors, {} if text is None else {"pool": text})
        with pytest.raises(cs.UserError, match="is not a network of a pool"):
            NetworkPool.load(directory)
    (directory / "pool.json").write_text("[]")
    with pytest.raises(cs.UserError, match=r"pool\.json is not a description of a pool"):
        NetworkPool.load(directory)


@pytest.mark.parametrize("seconds", [None, "1", True, -1, float("nan"), float("inf"), 10**400])
def test_invalid_training_times_are_refused(trained_pool: NetworkPool, tmp_path: Path, seconds: object) -> None:
    shutil.copytree(trained_pool.directory, tmp_path / "pool")
    change_pool_file(tmp_path / "pool/0001.safetensors", seconds=seconds)
    with pytest.raises(cs.UserError, match=r"0001\.safetensors is not a network of a pool; delete it to train"):
        NetworkPool.load(tmp_path / "pool")


def test_the_training_time_of_a_network_counts_once(trained_pool: NetworkPool, tmp_path: Path) -> None:
    assert all(state.seconds > 0 for state in trained_pool.states)
    shutil.copytree(trained_pool.directory, tmp_path / "pool")
    pool = set_pool_seconds(tmp_path / "pool", [1, 20, 300.5])
    assert pool.seconds(pool.states) == 321.5
    assert pool.seconds([state for state in pool.states if state.path.stem != "0001"]) == 301.5
    assert pool.seconds([]) == 0
    assert pool.fingerprint == trained_pool.fingerprint


def copy_with_metadata(pool: NetworkPool, directory: Path, **changes: object) -> Path:
    """Copy the pool, with other metadata in all of its files."""
    shutil.copytree(pool.directory, directory)
    metadata = {**pool.metadata, **changes}
    (directory / "pool.json").write_text(json.dumps(metadata))
    for path in directory.glob("*.safetensors"):
        tensors, file_metadata = read_tensors(path)
        content = {**json.loads(file_metadata["pool"]), "pool_hash": json_hash(metadata)}
        write_tensors(path, tensors, {"pool": json.dumps(content)})
    return directory


@pytest.mark.parametrize("key", ["num_classes", "channels", "size"])
@pytest.mark.parametrize("number", [-1, 0, True, 2.0, 10**9, 10**30])
def test_invalid_dimensions_are_refused(trained_pool: NetworkPool, tmp_path: Path, key: str, number: object) -> None:
    with pytest.raises(cs.UserError, match=r"pool\.json is not a description of a pool"):
        NetworkPool.load(copy_with_metadata(trained_pool, tmp_path / "pool", **{key: number}))


def test_weights_are_checked_before_memory_is_allocated(
    trained_pool: NetworkPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = NetworkPool.load(copy_with_metadata(trained_pool, tmp_path / "pool", num_classes=10**6))
    network = build_on_meta(SPEC, tiny_data(COUNTS), embedding=True)
    monkeypatch.setattr(torch, "full", None)
    with pytest.raises(cs.UserError, match=r"0000\.safetensors does not contain the weights of its network"):
        pool.weights(pool.states, network, CPU)


def test_validation_during_training_does_not_change_the_network() -> None:
    protocol = Protocol(network=SPEC, epochs=2, batch_size=8)
    dataset = DeviceDataset.from_data(tiny_data(COUNTS), CPU.device)
    trainer = Trainer(SPEC, dataset, protocol, CPU)
    trainer.train(0, "x")
    expected = trainer.weights.clone()
    for _ in trainer.iter_train(0, "x"):
        trainer.accuracy(dataset)
    assert torch.equal(trainer.weights, expected)


def test_networks_are_trained_in_a_new_directory(tmp_path: Path) -> None:
    data, fields = tiny_data(COUNTS), {**METHODS["dmplus"].tiny, "network": SPEC, "iterations": 2, "batch_size": 4}
    recipe = make_recipe("dmplus", ipc=1, name="", size=8, **fields, pool=tmp_path / "nets")
    identity = recipe.identity()
    first = cs.condense(data, recipe, device="cpu", verbose=False)
    (pool,) = (tmp_path / "nets").iterdir()
    files = {path: path.stat().st_mtime_ns for path in pool.iterdir()}
    assert NetworkPool.load(pool).num_networks == 1
    assert recipe.identity() == identity
    assert torch.equal(cs.condense(data, recipe, device="cpu", verbose=False).images, first.images)
    assert {path: path.stat().st_mtime_ns for path in pool.iterdir()} == files
    assert first.provenance["pool"]["seconds"] > 0
