"""Pools of trained networks: how they are trained, kept and grouped, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import condenset as cs
from condenset.files import read_tensors, write_tensors
from condenset.folders import locked
from condenset.methods import METHODS, pool_training, pools
from condenset.methods.matching import embedding
from condenset.methods.pool_training import early_looks, fill_pool, pool_protocol
from condenset.methods.pools import EDGES, Pool, group_names, in_group
from condenset.recipes import DistributionRecipe, Protocol
from condenset.runs import Interrupted, Run
from condenset.train import Trainer, TrainingSet
from condenset.types import ImageData
from plain import StopAtStep, tiny_data
from pooled import COUNTS, CPU, SPEC, TRAINING, pooled, problem, small_pool


def test_groups_by_accuracy() -> None:
    names = group_names(EDGES)
    assert names == ["10-20", "20-30", "30-40", "40-50", "50-60", "60-70", "70-100"]
    accuracies = (0.0999, 0.1, 0.1999, 0.2, 0.29, 0.3, 0.7, 1.0)
    mine = [next((name for name in names if in_group(accuracy, name)), None) for accuracy in accuracies]
    assert mine == [None, "10-20", "10-20", "20-30", "20-30", "30-40", "70-100", "70-100"]
    assert all(in_group(accuracy, "all") for accuracy in accuracies)
    assert group_names([2.5, 97]) == ["2.5-97", "97-100"]
    for wrong in ((), (50, 50), (60, 50), (-1, 5), (100,)):
        with pytest.raises(cs.UserError, match="edges must be"):
            group_names(wrong)
    for text in ("70", "70-60", "a-b", "10-120", "1-2-3"):
        with pytest.raises(cs.UserError, match="group must be all, or accuracies in %"):
            DistributionRecipe(ipc=1, group=text)


def test_looks_are_close_at_first() -> None:
    assert early_looks(1) == frozenset()
    assert early_looks(4) == {1, 2, 3}
    looks = sorted(early_looks(176))
    assert looks[:4] == [1, 2, 3, 4]
    assert looks[-1] < 176
    assert all(b <= 1.25 * a + 1 for a, b in itertools.pairwise(looks))


def test_states_are_the_first_of_each_group_and_the_last_with_the_accuracies_they_have(shared: Pool) -> None:
    rest, held = cs.split_off(tiny_data(COUNTS), 0.1, seed=0)
    protocol = pool_protocol(rest, **TRAINING)
    device = torch.device("cpu")
    trainer = Trainer(SPEC, TrainingSet.of(rest, device), protocol, CPU)
    history: list[tuple[int, float, Tensor]] = []
    steps = 0

    def look() -> None:
        history.append((steps, trainer.accuracy(TrainingSet.of(held, device)), trainer.weights.clone()))

    def count() -> None:
        nonlocal steps
        steps += 1
        if steps in (1, 2, 3, 4):  # of the 5 in the first pass
            look()

    trainer.train(0, "pool", 1, after_pass=lambda _: look(), after_step=count)
    kept: list[tuple[int, float, Tensor]] = []
    for state in history:
        name = next((name for name in group_names(EDGES) if in_group(state[1], name)), None)
        if state is history[-1] or (name and not any(in_group(accuracy, name) for _, accuracy, _ in kept)):
            kept.append(state)
    mine = [state for state in shared.states if state.path.stem == "0001"]
    assert [(state.step, state.accuracy) for state in mine] == [(step, accuracy) for step, accuracy, _ in kept]
    assert len(mine) > 1
    weights = read_tensors(mine[0].path)[0]["weights"]
    assert torch.equal(weights, torch.stack([state[2] for state in kept]))
    assert steps == 5 * protocol.passes


def test_a_pool_is_trained_network_by_network(tmp_path: Path, shared: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data(COUNTS)
    run = Run(place=CPU)
    run.progress = StopAtStep(run, 45)  # in the midst of the second network: each takes 40 steps
    with pytest.raises(Interrupted):
        fill_pool(data, tmp_path, 3, pool_protocol(data, **TRAINING), EDGES, run)
    assert Pool.load(tmp_path).num_networks == 1
    before = (tmp_path / "0000.safetensors").stat().st_mtime_ns
    for name in (".0001.safetensors.x.tmp", ".pool.json.x.tmp", ".checkpoint.x.tmp"):
        (tmp_path / name).touch()
    assert small_pool(tmp_path).fingerprint == shared.fingerprint
    assert (tmp_path / "0000.safetensors").stat().st_mtime_ns == before
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"pool.json", "0000.safetensors", "0001.safetensors", "0002.safetensors"}
    monkeypatch.setattr(Trainer, "training", None)
    assert small_pool(tmp_path, num=2).num_networks == 3  # there already


def test_every_network_s_seconds_are_told_also_of_those_before_a_stop(tmp_path: Path) -> None:
    data = tiny_data(COUNTS)
    for num in (1, 3):  # as a stop after the first would leave it
        run = Run(place=CPU, folder=tmp_path / "part", job="pool")
        run.folder.mkdir(exist_ok=True)
        fill_pool(data, tmp_path / "networks", num, pool_protocol(data, **TRAINING), EDGES, run)
    told = run.networks()
    assert [event["net"] for event in told] == [0, 1, 2]
    assert all(event["seconds"] > 0 for event in told)


def test_a_folder_that_another_process_fills_is_left_alone(tmp_path: Path) -> None:
    at_work = tmp_path / ".0000.safetensors.x.tmp"
    at_work.touch()
    with locked(tmp_path), pytest.raises(cs.UserError, match="is being worked on by another process"):
        small_pool(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [at_work.name]


def test_side_by_side_networks_come_out_as_one_by_one(
    tmp_path: Path, shared: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_training, "together", lambda *_: 2)
    found = small_pool(tmp_path)
    assert found.fingerprint == shared.fingerprint
    for mine, theirs in zip(found.states, shared.states, strict=True):
        assert torch.equal(*(read_tensors(state.path)[0]["weights"][state.row] for state in (mine, theirs)))


@pytest.mark.parametrize("at_once", [1, 2])
def test_networks_half_trained_go_on_to_the_same(
    at_once: int, tmp_path: Path, shared: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they stopped: within the first pass, where most states are, at the end of a pass, and later."""
    monkeypatch.setattr(pool_training, "together", lambda *_: at_once)
    data, protocol = tiny_data(COUNTS), pool_protocol(tiny_data(COUNTS), **TRAINING)
    steps, step = [], Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, ahead: (steps.append(len(ahead)), step(self, ahead))[1])
    for number in (2, 3, 5, 8, 10, 11, 25, 39, 43, 45):  # a pass has 5 steps
        run = Run(place=CPU)
        run.progress = StopAtStep(run, at_once * number)
        with pytest.raises(Interrupted):
            fill_pool(data, tmp_path, 3, protocol, EDGES, run)
        assert (tmp_path / "checkpoint").exists()
        Pool.load(tmp_path)  # what is done can be drawn from meanwhile
    found = small_pool(tmp_path)
    assert len(steps) == 3 * 40  # none is done twice
    assert not (tmp_path / "checkpoint").exists()
    assert found.fingerprint == shared.fingerprint
    for mine, theirs in zip(found.states, shared.states, strict=True):
        assert torch.equal(*(read_tensors(state.path)[0]["weights"][state.row] for state in (mine, theirs)))


def test_a_checkpoint_of_another_pool_or_network_is_passed_over(
    tmp_path: Path, shared: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(place=CPU)
    run.progress = StopAtStep(run, 11)
    with pytest.raises(Interrupted):
        fill_pool(tiny_data(COUNTS), tmp_path, 3, pool_protocol(tiny_data(COUNTS), **TRAINING), EDGES, run)
    for name in ("0000.safetensors", pools.ABOUT):
        shutil.copy(shared.folder / name, tmp_path)
    assert small_pool(tmp_path).fingerprint == shared.fingerprint


def test_what_does_not_fit_is_one_line(shared: Pool, tmp_path: Path) -> None:
    data = tiny_data(COUNTS)
    empty = next(name for name, size in shared.group_sizes().items() if not size)
    with pytest.raises(cs.UserError, match=rf"no network of group '{empty}'; it has 10-20"):
        problem(pooled(shared, group=empty))
    with pytest.raises(cs.UserError, match=r"network must be the pool's convnet\(width=8.*but got .convnet\(width=4"):
        problem(pooled(shared, network="convnet(width=4, depth=2)"))
    with pytest.raises(cs.UserError, match=r"images of \(3, 8, 8\), but got \(1, 8, 8\)"):
        METHODS["dm"](tiny_data(COUNTS, channels=1), pooled(shared), Run(place=CPU))
    with pytest.warns(UserWarning, match="were trained on other images than these"):
        METHODS["dm"](tiny_data(COUNTS, seed=5), pooled(shared), Run(place=CPU))
    with pytest.raises(cs.UserError, match="is not a pool of networks"):
        METHODS["dm"](data, dataclasses.replace(pooled(shared), pool=str(tmp_path)), Run(place=CPU))
    with pytest.raises(cs.UserError, match=r"holds another pool \(it differs in epochs, seed\)"):
        small_pool(shared.folder, seed=1, epochs=2)
    (tmp_path / "note.txt").touch()
    with pytest.raises(cs.UserError, match="not empty and not a pool"):
        small_pool(tmp_path)
    with pytest.raises(cs.UserError, match="own_steps must be false: only a score is by"):
        small_pool(tmp_path / "d", own_steps=True)
    with pytest.raises(cs.UserError, match="num must be a whole number, 1 or more"):
        small_pool(tmp_path / "b", num=0)


def test_damaged_files_are_named(shared: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    shutil.copytree(shared.folder, folder)
    file = folder / "0001.safetensors"
    tensors, metadata = read_tensors(file)
    for other in (tensors["weights"][:, 1:], tensors["weights"][:-1], tensors["weights"][0]):
        write_tensors(file, {"weights": other.clone()}, metadata)
        with pytest.raises(cs.UserError, match=r"0001\.safetensors holds other weights"):
            problem(pooled(Pool.load(folder)))
    write_tensors(file, tensors, {"pool": metadata["pool"].replace('"about": "', '"about": "x')})
    with pytest.raises(cs.UserError, match=r"0001\.safetensors belongs to another pool"):
        Pool.load(folder)
    for content in (b"", b"x" * 100, file.read_bytes()[:-9]):
        file.write_bytes(content)
        with pytest.raises(cs.UserError, match=r"0001\.safetensors"):
            Pool.load(folder)
    write_tensors(file, tensors, {})
    with pytest.raises(cs.UserError, match="is not a network of a pool"):
        Pool.load(folder)
    (folder / "pool.json").write_text("[]")
    with pytest.raises(cs.UserError, match="does not say what the pool holds"):
        Pool.load(folder)


def promising(pool: Pool, folder: Path, **about: object) -> Path:
    """A copy of the pool, all of whose files say something else of it."""
    shutil.copytree(pool.folder, folder)
    told = {**pool.about, **about}
    (folder / "pool.json").write_text(json.dumps(told))
    for path in folder.glob("*.safetensors"):
        tensors, metadata = read_tensors(path)
        meta = {**json.loads(metadata["pool"]), "about": pools.hashed(told)}
        write_tensors(path, tensors, {"pool": json.dumps(meta)})
    return folder


@pytest.mark.parametrize("key", ["num_classes", "channels", "size"])
@pytest.mark.parametrize("number", [-1, 0, True, 2.0, 10**9, 10**30])
def test_numbers_that_no_pool_has_are_refused(shared: Pool, tmp_path: Path, key: str, number: object) -> None:
    with pytest.raises(cs.UserError, match=r"pool\.json does not say what the pool holds"):
        Pool.load(promising(shared, tmp_path / "pool", **{key: number}))


def test_no_more_memory_is_asked_for_than_the_files_hold(
    shared: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool.load(promising(shared, tmp_path / "pool", num_classes=10**6))
    network = embedding(SPEC, tiny_data(COUNTS))
    monkeypatch.setattr(torch, "full", None)
    with pytest.raises(cs.UserError, match=r"0000\.safetensors holds other weights"):
        pool.weights("all", network, CPU)


def test_the_trainer_s_hooks_do_not_change_the_network() -> None:
    data: ImageData = tiny_data(COUNTS)
    protocol = Protocol(network=SPEC, epochs=2, batch=8)
    trainer = Trainer(SPEC, TrainingSet.of(data, CPU.device), protocol, CPU)
    trainer.train(0, "x")
    expected = trainer.weights.clone()
    test = TrainingSet.of(data, CPU.device)
    trainer.train(0, "x", after_step=lambda: trainer.accuracy(test) and None)
    assert torch.equal(trainer.weights, expected)
