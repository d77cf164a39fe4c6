"""Matching that draws from a pool of trained networks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import condenset as cs
from condenset import augment, draws, networks
from condenset.engine import Place
from condenset.files import read_tensors, write_tensors
from condenset.methods import METHODS, pools
from condenset.methods.matching import _need, embedding
from condenset.methods.pools import Pool, in_group
from condenset.runs import Interrupted, Run
from condenset.types import CondensedSet
from condenset.workflow import made_set
from plain import StopAtStep, matching_loss, tiny_data
from pooled import COUNTS, CPU, SPEC, pooled, problem, small_pool


def test_a_group_s_weights_are_those_of_its_states_without_the_classifier(shared: Pool) -> None:
    network = embedding(SPEC, tiny_data(COUNTS))
    everything = shared.weights("all", network, CPU)
    assert len(everything) == len(shared.states) == shared.group_sizes()["all"]
    full = networks.Parameters(networks.build(SPEC, channels=3, size=8, num_classes=3), CPU.device)
    headless = networks.Parameters(network, CPU.device)
    for row_P, state in zip(everything, shared.states, strict=True):
        stored = read_tensors(state.path)[0]["weights"][state.row]
        theirs, mine = full.views(stored, torch.float32), headless.views(row_P, torch.float32)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    name, size = next((name, size) for name, size in shared.group_sizes().items() if size)
    chosen = [number for number, state in enumerate(shared.states) if in_group(state.accuracy, name)]
    assert len(chosen) == size
    assert torch.equal(shared.weights(name, network, CPU), everything[chosen])


def test_the_network_drawn_is_a_function_of_seed_and_step(shared: Pool) -> None:
    matching, other = problem(pooled(shared)), problem(pooled(shared), seed=4)
    num = len(shared.states)
    drawn, theirs = [], []
    for step in range(80):
        for each, found in ((matching, drawn), (other, theirs)):
            each.clock.fill_(step)
            place = int(draws.choice(draws.make_key(each.run.seed, "network"), step, num))
            assert each.pool_GP is not None
            assert torch.equal(each.draw_network(), each.pool_GP[place])
            found.append(place)
    assert set(drawn) == set(range(num))  # all get their turn
    assert drawn != theirs


def test_choice_is_even_and_within_bounds() -> None:
    key = draws.make_key(0, "any")
    found = torch.cat([draws.choice(key, step, 5) for step in range(1000)])
    counts = found.bincount(minlength=5)
    assert len(counts) == 5
    assert (counts - 200).abs().max() < 50
    assert all(int(draws.choice(key, step, 1)) == 0 for step in range(5))


def only(pool: Pool, folder: Path, number: int) -> Pool:
    """A pool of one state of one network."""
    folder.mkdir()
    state = pool.states[number]
    shutil.copy(pool.folder / pools.ABOUT, folder)
    meta = {"about": pools.hashed(pool.about), "states": [{"step": state.step, "accuracy": state.accuracy}]}
    weights = read_tensors(state.path)[0]["weights"][state.row][None]
    write_tensors(folder / "0000.safetensors", {"weights": weights}, {"pool": json.dumps(meta)})
    return Pool.load(folder)


@pytest.mark.parametrize("strategy", [augment.STRATEGY, "none"])
def test_a_pool_of_one_network_is_matching_with_that_network(shared: Pool, tmp_path: Path, strategy: str) -> None:
    one = only(shared, tmp_path / "one", -1)
    matching, data = problem(pooled(one, augment=strategy)), tiny_data(COUNTS)
    network = networks.build(SPEC, channels=3, size=8, num_classes=3)
    parameters = networks.Parameters(network, CPU.device)
    stored = read_tensors(one.states[0].path)[0]["weights"][0]
    network.load_state_dict(parameters.views(stored, torch.float32))
    images = matching.images_KICHW.clone()
    velocity = torch.zeros_like(images)
    for step in range(4):
        real = []
        for number, count in enumerate(COUNTS):
            row = torch.tensor([number])
            places = draws.subsets(matching.keys["real"], step, row, torch.tensor([count]), count, 5)[0]
            real.append((data.images[data.labels == number][places].float() / 255 - 0.5) / 0.25)
        synthetic = [each.clone().requires_grad_() for each in images]
        uniforms = draws.uniform(matching.keys["augment"], step, torch.arange(3), augment.NUM_UNIFORMS)
        loss = matching_loss(network, real, synthetic, operations=augment.parse(strategy), uniforms=uniforms)
        velocity = 0.5 * velocity + torch.stack(torch.autograd.grad(loss, synthetic))
        images = images - velocity
        matching.step()
        torch.testing.assert_close(matching.losses[step], loss.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(matching.images_KICHW, images, rtol=1e-3, atol=1e-4)


def test_stopped_and_resumed_wherever_the_pool_lies_then(
    shared: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    data, dm = tiny_data(COUNTS), METHODS["dm"]
    expected = dm(data, pooled(shared), Run(seed=1, place=CPU))
    shutil.copytree(shared.folder, tmp_path / "moved")
    for folder, stop in ((shared.folder, 2), (tmp_path / "moved", 99)):
        recipe = pooled(Pool.load(folder))
        run = Run(seed=1, place=CPU, folder=tmp_path, job="dm-2", recipe=dataclasses.asdict(recipe))
        run.progress = StopAtStep(run, stop)
        if stop < 4:
            with pytest.raises(Interrupted):
                dm(data, recipe, run)
        else:
            assert torch.equal(dm(data, recipe, run).images, expected.images)
    about = {"fingerprint": shared.fingerprint, "group": "all", "networks": len(shared.states)}
    assert expected.provenance["pool"] == about


def test_several_sizes_are_resumed_wherever_the_pool_lies_then(
    shared: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    data = tiny_data(COUNTS)
    expected = [METHODS["dm"](data, pooled(shared, ipc=ipc), Run(seed=1, place=CPU)) for ipc in (1, 2)]
    shutil.copytree(shared.folder, tmp_path / "moved")
    paths = [tmp_path / f"{ipc}.safetensors" for ipc in (1, 2)]
    for folder, stop in ((shared.folder, 2), (tmp_path / "moved", 99)):
        first, other = (pooled(Pool.load(folder), ipc=ipc) for ipc in (1, 2))
        run = Run(seed=1, place=CPU, folder=tmp_path, job="dm-1")
        run.progress = StopAtStep(run, stop)
        with pytest.raises(Interrupted) if stop < 4 else contextlib.nullcontext():
            made_set(paths[0], "dm", first, data, run, {paths[1]: other})
    for path, alone in zip(paths, expected, strict=True):
        torch.testing.assert_close(CondensedSet.load(path).images, alone.images, rtol=1e-3, atol=1e-4)


def test_a_pool_goes_where_its_folder_does(shared: Pool, tmp_path: Path) -> None:
    data, fields = tiny_data(COUNTS), {"ipc": 1, "network": SPEC, "iterations": 1, "batch": 4, "device": "cpu"}
    by_pool, by_path, by_text = (
        cs.condense(data, pool=pool, **fields)  # type: ignore[arg-type]
        for pool in (shared, shared.folder, str(shared.folder))
    )
    assert by_pool.provenance["recipe"]["pool"] == str(shared.folder)
    assert torch.equal(by_pool.images, by_text.images) and torch.equal(by_path.images, by_text.images)
    memory = cs.Memory(pool=shared, **fields)  # type: ignore[arg-type]
    memory.add(data)
    memory.save(tmp_path / "memory.safetensors")
    assert torch.equal(cs.Memory.load(tmp_path / "memory.safetensors").set.images, memory.set.images)
    with pytest.raises(cs.UserError, match="group must come with the pool that it is of, but got '60-70'"):
        cs.condense(data, ipc=1, group="60-70")


def test_a_pool_counts_as_memory(shared: Pool) -> None:
    matching, data = problem(pooled(shared)), tiny_data(COUNTS)
    assert matching.pool_GP is not None
    without, with_pool = (
        _need(matching.network, data, [pooled(shared)], CPU, pool=each) for each in (0, matching.pool_GP.nbytes)
    )
    assert with_pool.held - without.held == matching.pool_GP.nbytes > 0


def test_batch_norm_and_bfloat16(tmp_path: Path) -> None:
    spec = "convnet(width=8, depth=2, norm='batch')"
    batch = small_pool(tmp_path / "batch", num=1, network=spec, epochs=1)
    assert METHODS["dm"](tiny_data(COUNTS), pooled(batch, network=spec), Run(place=CPU)).images.isfinite().all()
    half = Place.best("cpu", "bfloat16")
    assert batch.weights("all", embedding(spec, tiny_data(COUNTS)), half).dtype == torch.float32
    plain = small_pool(tmp_path / "plain", num=1, epochs=1)
    network = embedding(SPEC, tiny_data(COUNTS))
    fine, coarse = (plain.weights("all", network, place) for place in (CPU, half))
    assert torch.equal(coarse, fine.bfloat16())
