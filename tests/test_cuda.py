"""What only a GPU can show: captured steps and streams do what the plain ones do, whatever else uses its memory."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from condenset import draws, estimates, ranking
from condenset.engine import Place
from condenset.engine.step import accelerate
from condenset.evaluation import score
from condenset.methods import METHODS
from condenset.methods.matching import dm_sizes
from condenset.methods.pool_training import train_pool
from condenset.presets import make_recipe
from condenset.recipes import Protocol, Recipe
from condenset.runs import Interrupted, Run
from condenset.train import Trainer, TrainingSet, side_by_side
from plain import StopAtStep, tiny_data
from replayed import USERS

GPU = "cuda"
NETWORK = "convnet(width=16, depth=2)"
FIELDS: dict[str, dict[str, Any]] = {
    "mmd": {"iterations": 5, "batch": 4, "kernel": "laplacian"},
    "dd": {"iterations": 3, "batch": 4, "network": "lenet", "steps": 2, "epochs": 2},
    "ld": {"iterations": 5, "batch": 4, "network": NETWORK},
    "dsa": {"iterations": 2, "batch": 4, "outer": 3, "inner": 2, "network": NETWORK},
    "dm": {"iterations": 5, "batch": 4, "network": NETWORK},
}

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1",
        reason="needs a GPU, and kernels that are not interpreted",
    ),
    pytest.mark.filterwarnings("ignore", "error:running without"),  # the compiler warns of much
]


@pytest.fixture(autouse=True)
def same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def run_on_gpu(**fields: Any) -> Run:
    return Run(place=Place.best(GPU), **fields)


def recipe_of(method: str, **fields: Any) -> Recipe:
    return make_recipe(method, name="tiny", size=16, **{"ipc": 2, "allow_fewer": True, **FIELDS[method], **fields})


def litter() -> None:
    """Take what memory is free, small blocks and large, and leave numbers in it that are no index."""
    for size in (2, 64, 128, 256, 1024, 4096, 2**18):
        for block in [torch.empty(size, dtype=torch.int64, device=GPU) for _ in range(64)]:
            block.fill_(-(2**40))


def uncaptured(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in USERS:
        monkeypatch.setattr(f"condenset.{user}.accelerate", lambda step, *_: step)


def check_same(do: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured and not, the same up to what libraries round otherwise."""
    found = do()
    with monkeypatch.context() as patched:
        uncaptured(patched)
        expected = do()
    for mine, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-2, atol=1e-3)


def test_a_captured_step_reads_what_it_read_when_it_was_captured() -> None:
    place, state = Place.best(GPU), torch.zeros(200, device=GPU, dtype=torch.int64)

    def made() -> Callable[[], None]:
        ahead = torch.arange(200, device=GPU)  # nobody else's

        def add() -> None:
            state.add_(ahead)

        return accelerate(add, [state], place)

    step = made()
    for _ in range(3):
        litter()
        step()
    assert torch.equal(state, 3 * torch.arange(200, device=GPU))


def weights(norm: str, *, beside: bool) -> Tensor:
    """What three networks learn, each trainer having trained another before, of two whole batches and a part of one."""
    data = TrainingSet.of(tiny_data([40, 40], size=16), torch.device(GPU))
    protocol = Protocol(network=f"convnet(width=16, depth=2, norm={norm!r})", epochs=4, batch=32)
    found = [Trainer(protocol.network, data, protocol, Place.best(GPU)) for _ in range(3)]
    for seed in (1, 2):
        runs = [trainer.training(seed, place) for place, trainer in enumerate(found)]
        for each in [side_by_side(runs, torch.device(GPU))] if beside else runs:
            for _ in each:
                litter()
    return torch.stack([trainer.weights for trainer in found])


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_captured_training_is_plain_training(norm: str, beside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = weights(norm, beside=beside)
    uncaptured(monkeypatch)
    plain = weights(norm, beside=False)
    assert plain.isfinite().all()
    assert torch.equal(found, plain)


@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 1, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("method", list(FIELDS))
def test_a_captured_method_is_the_plain_one(method: str, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = tiny_data(counts, size=16), recipe_of(method)

    def make() -> list[Tensor]:
        small = METHODS[method](data, recipe, run_on_gpu())
        return [small.images, small.labels.float()]

    check_same(make, monkeypatch)


def test_several_sizes_and_large_soft_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([60, 50], size=16)
    sizes = [recipe_of("dm", ipc=ipc) for ipc in (1, 3)]
    check_same(lambda: [each.images for each in dm_sizes(data, sizes, run_on_gpu())], monkeypatch)
    many = recipe_of("ld", ipc=45)  # from 64 images on libraries solve otherwise
    check_same(lambda: [METHODS["ld"](data, many, run_on_gpu()).labels], monkeypatch)


@pytest.mark.parametrize("method", ["dm", "dsa", "dd"])
def test_a_resumed_run_is_the_same_to_the_bit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.SETTLE_SECONDS", 0.0)
    data, recipe = tiny_data([6, 4, 6], size=16), recipe_of(method)
    run = run_on_gpu(folder=tmp_path, job="job")
    run.stop_requested = True
    with pytest.raises(Interrupted):
        METHODS[method](data, recipe, run)
    resumed = METHODS[method](data, recipe, run_on_gpu(folder=tmp_path, job="job"))
    assert torch.equal(resumed.images, METHODS[method](data, recipe, run_on_gpu()).images)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_networks_stopped_midway_go_on_to_the_same_bits(
    norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.train.REST_AFTER", 2)  # of three steps a pass, on the way too
    data, test = tiny_data([40, 40], size=16), tiny_data([30, 30], size=16, seed=1)
    made = Protocol(network=f"convnet(width=16, depth=2, norm={norm!r})", nets=7, epochs=3, batch=32)
    tested: list[Tensor] = []
    accuracy = Trainer.accuracy

    def noted(trainer: Trainer, *args: Any) -> float:
        tested.append(trainer.weights.clone())
        return accuracy(trainer, *args)

    monkeypatch.setattr(Trainer, "accuracy", noted)
    whole, networks = score(data, test, made, run_on_gpu()), tested[:]
    tested.clear()
    for step in (5, 25, 50, 70):  # in the midst of passes and at their end, of the first five networks and the others
        run = run_on_gpu(folder=tmp_path, job="whole")
        run.progress = StopAtStep(run, step)
        with pytest.raises(Interrupted):
            score(data, test, made, run)
        litter()
    assert score(data, test, made, run_on_gpu(folder=tmp_path, job="whole")).accuracies == whole.accuracies
    assert len(tested) == 7
    assert all(torch.equal(mine, plain) for mine, plain in zip(tested, networks, strict=True))
    assert not (tmp_path / "checkpoint").exists()


def test_a_search_side_by_side_is_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        "convnet(width=32, depth=1)",
        "convnet(width=256, depth=2, norm='batch')",
        "convnet(width=32, depth=2, norm='layer', activation='sigmoid', pooling='max')",
        "convnet(width=32, depth=1, norm='group', activation='leaky_relu', pooling='none')",
        "convnet(width=32, depth=1, norm='none')",
    ]
    train, validation = tiny_data([40, 40], size=16), tiny_data([30, 30], size=16)
    protocol = Protocol(nets=2, epochs=3, batch=32)

    def search() -> dict[str, float]:
        rows = ranking.search(specs, train, validation, protocol, run_on_gpu()).rows
        assert not any(row.reason for row in rows)
        return {row.name: row.accuracy for row in rows}

    found = search()
    monkeypatch.setattr(ranking, "_groups", lambda names, *_: iter([[name] for name in names]))
    assert found == pytest.approx(search(), abs=0.06)  # a few of 60 images may lie on the fence


@pytest.mark.parametrize("network", ["alexnet(norm='batch')", "vgg11(norm='batch')", "resnet18(norm='batch')"])
def test_compiled_networks_keep_apart(network: str) -> None:
    """Two trainers share a compiled module, and testing comes between."""
    data = TrainingSet.of(tiny_data([20, 20], size=32), torch.device(GPU))
    protocol = Protocol(network=network, epochs=2, batch=16)

    def train(testing: bool) -> list[Tensor]:
        pair = [Trainer(network, data, protocol, Place.best(GPU)) for _ in range(2)]
        turns = [trainer.training(1, place) for place, trainer in enumerate(pair)]
        for _ in zip(*turns, strict=True):
            if testing:
                pair[0].accuracy(data)
        return [each for trainer in pair for each in (trainer.weights, *trainer.buffers.values())]

    found, expected = train(True), train(False)
    assert all(torch.equal(mine, plain) for mine, plain in zip(found, expected, strict=True))
    assert not torch.equal(found[0], found[len(found) // 2])


def test_pools_and_own_steps(tmp_path: Path) -> None:
    data = tiny_data([20, 20], size=16)
    train_pool(data, tmp_path / "pool", num=2, network=NETWORK, epochs=2, batch=16, device=GPU)
    small = METHODS["dm"](data, recipe_of("dm", pool=str(tmp_path / "pool")), run_on_gpu())
    assert small.images.isfinite().all()
    steps = METHODS["dd"](data, recipe_of("dd", iterations=30), run_on_gpu())
    scores = score(steps, data, Protocol(network="lenet", nets=3, own_steps=True), run_on_gpu())
    assert 0 <= scores.mean <= 1


def test_large_draws() -> None:
    key = draws.make_key(0, device=GPU)
    order = draws.permutation(key, 1, 50_000)
    assert torch.equal(order.sort().values, torch.arange(50_000, device=GPU))
    assert torch.equal(order.cpu(), draws.permutation(key.cpu(), 1, 50_000))
    assert 0.49 < float(draws.flat_uniform(key, 0, 70_000_000).mean()) < 0.51


def test_memory_comes_back_without_the_collector() -> None:
    data, protocol = tiny_data([40, 40], size=16), Protocol(network=NETWORK, nets=5, epochs=2, batch=32)
    held = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            score(data, data, protocol, run_on_gpu())
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # of every stream, and streams take turns
            held.append(torch.cuda.memory_allocated())
    finally:
        gc.enable()
    assert held[-1] <= held[0]


def test_to_build_kernels_is_not_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    step, waits = Trainer._step_of, list[None]()

    def slow_to_make(self: Trainer, num: int) -> Callable[[], None]:
        if num not in self._steps:
            time.sleep(0.5)
        return step(self, num)

    monkeypatch.setattr(Trainer, "_step_of", slow_to_make)
    monkeypatch.setattr(Trainer, "is_finite", lambda self: waits.append(torch.cuda.synchronize()))
    monkeypatch.setattr(estimates, "ENOUGH", 0.4)
    data = tiny_data([10, 20])
    assert estimates._seconds_each(NETWORK, data, Place.best(GPU)) * 3 * len(data) * estimates.STRETCH[GPU] < 0.4
    assert len(waits) == 4
