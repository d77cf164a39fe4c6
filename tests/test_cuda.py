"""Tests that need a GPU: captured steps and streams compute the same as plain steps, and memory is freed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from condenset import networks
from condenset.engine import ComputeDevice, rng
from condenset.engine.cuda_graph import capture_step
from condenset.methods import METHODS, Recipe
from condenset.methods.pools.pool_training import train_pool
from condenset.methods.registry import make_recipe
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted
from condenset.search.ranking import rank_architectures
from condenset.training.dataset import DeviceDataset
from condenset.training.parallel import train_in_parallel
from condenset.training.protocol import Protocol
from condenset.training.scoring import score_set
from condenset.training.trainer import Trainer
from helpers.graph_replay import disable_capture
from helpers.imports import tiny_import
from helpers.interruption import StopAtStep
from helpers.reference_dm import tiny_data

GPU = "cuda"
NETWORK = "convnet(width=16, depth=2)"
FIELDS: dict[str, dict[str, Any]] = {
    "mmd": {"iterations": 5, "batch_size": 4, "objective": "kernel"},
    "dd": {"iterations": 3, "batch_size": 4, "network": "lenet", "steps": 2, "epochs": 2},
    "ld": {"iterations": 5, "batch_size": 4, "network": NETWORK},
    "dsa": {"iterations": 2, "batch_size": 4, "outer_steps": 3, "inner_epochs": 2, "network": NETWORK},
    "dcc": {"iterations": 2, "batch_size": 4, "outer_steps": 3, "inner_epochs": 2, "network": NETWORK},
    "idc": {"iterations": 2, "batch_size": 4, "outer_steps": 3, "train_images": 8, "network": NETWORK},
    "cafe": {"iterations": 2, "batch_size": 4, "outer_steps": 3, "inner_epochs": 2, "network": NETWORK},
    "mtt": {"iterations": 3, "network": NETWORK, "steps": 3, "max_start_epoch": 2, "pool_size": 2, "lr": 10.0},
    "dm": {"iterations": 5, "batch_size": 4, "network": NETWORK},
    "idm": {"iterations": 5, "batch_size": 4, "network": NETWORK},
    "ncfm": {"iterations": 5, "batch_size": 4, "network": NETWORK, "pool_size": 2, "pool_epochs": 2},
    "dmplus": {"iterations": 5, "batch_size": 4, "network": NETWORK, "pool_size": 2, "pool_epochs": 2},
    "gmmn": {"iterations": 5, "batch_size": 4, "width": 16},
    "vae": {"iterations": 3, "batch_size": 8, "width": 16},
    "gan": {"iterations": 3, "batch_size": 8, "width": 16},
    "kip": {"iterations": 5, "batch_size": 4, "network": NETWORK},
    "gtn": {"iterations": 3, "batch_size": 4, "network": NETWORK, "steps": 2, "epochs": 2, "width": 8},
}

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or os.environ["TRITON_INTERPRET"] == "1",
        reason="needs a GPU, and compiled kernels",
    ),
    pytest.mark.filterwarnings("ignore", "error:running without"),  # the compiler emits many other warnings
]


@pytest.fixture(autouse=True)
def deterministic_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Select convolution algorithms that repeat to the bit."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def run_on_gpu(**fields: Any) -> RunContext:
    return RunContext(compute=ComputeDevice.select(GPU), **fields)


def make_gpu_recipe(method: str, **fields: Any) -> Recipe:
    return make_recipe(method, name="tiny", size=16, **{"ipc": 2, "allow_fewer": True, **FIELDS[method], **fields})


def overwrite_free_memory() -> None:
    """Allocate free memory in small and large blocks, and leave numbers in it that are not valid indices."""
    for size in (2, 64, 128, 256, 1024, 4096, 2**18):
        for block in [torch.empty(size, dtype=torch.int64, device=GPU) for _ in range(64)]:
            block.fill_(-(2**40))


def check_captured(compute: Callable[[], list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that captured and plain steps compute the same, up to the rounding of libraries."""
    captured = compute()
    with monkeypatch.context() as patched:
        disable_capture(patched)
        plain = compute()
    for actual, expected in zip(captured, plain, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-3)


def test_a_captured_step_keeps_its_inputs() -> None:
    compute, state = ComputeDevice.select(GPU), torch.zeros(200, device=GPU, dtype=torch.int64)

    def make_step() -> Callable[[], None]:
        amounts = torch.arange(200, device=GPU)  # no other reference exists

        def add() -> None:
            state.add_(amounts)

        return capture_step(add, [state], compute)

    step = make_step()
    for _ in range(3):
        overwrite_free_memory()
        step()
    assert torch.equal(state, 3 * torch.arange(200, device=GPU))


def train_networks(norm: str, *, parallel: bool) -> Tensor:
    """Return the weights of the second network of each of three trainers. The last batch of an epoch is smaller."""
    data = DeviceDataset.from_data(tiny_data([40, 40], size=16), torch.device(GPU))
    protocol = Protocol(network=f"convnet(width=16, depth=2, norm={norm!r})", epochs=4, batch_size=32)
    trainers = [Trainer(protocol.network, data, protocol, ComputeDevice.select(GPU)) for _ in range(3)]
    for seed in (1, 2):
        trainings = [trainer.iter_train(seed, position) for position, trainer in enumerate(trainers)]
        for training in [train_in_parallel(trainings, torch.device(GPU))] if parallel else trainings:
            for _ in training:
                overwrite_free_memory()
    return torch.stack([trainer.weights for trainer in trainers])


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_captured_training_equals_plain_training(norm: str, parallel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    captured = train_networks(norm, parallel=parallel)
    disable_capture(monkeypatch)
    plain = train_networks(norm, parallel=False)
    assert plain.isfinite().all()
    assert torch.equal(captured, plain)


@pytest.mark.parametrize("counts", [[6, 6, 6], [6, 1, 5]], ids=["equal", "unequal"])
@pytest.mark.parametrize("method", list(FIELDS))
def test_a_captured_method_equals_the_plain_one(
    method: str, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, recipe = tiny_data(counts, size=16), make_gpu_recipe(method)

    def condense() -> list[Tensor]:
        condensed = METHODS[method].condense(data, recipe, run_on_gpu())
        return [condensed.images, condensed.labels.float()]

    check_captured(condense, monkeypatch)


def test_kernel_of_random_features(monkeypatch: pytest.MonkeyPatch) -> None:
    data, recipe = tiny_data([60, 50], size=16), make_gpu_recipe("kip", ipc=45, kernel="features")
    check_captured(lambda: [METHODS["kip"].condense(data, recipe, run_on_gpu()).images], monkeypatch)


def test_several_sizes_and_large_soft_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([60, 50], size=16)
    sizes = [make_gpu_recipe("dm", ipc=ipc) for ipc in (1, 3)]
    condense_sizes = METHODS["dm"].condense_sizes
    assert condense_sizes is not None
    check_captured(lambda: [condensed.images for condensed in condense_sizes(data, sizes, run_on_gpu())], monkeypatch)
    large = make_gpu_recipe("ld", ipc=45)  # from 64 images, libraries use another solver
    check_captured(lambda: [METHODS["ld"].condense(data, large, run_on_gpu()).labels], monkeypatch)


@pytest.mark.parametrize("method", ["dm", "dsa", "idc", "mtt", "dd", "idm", "gmmn", "gan", "kip"])
def test_a_resumed_run_repeats_to_the_bit(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.runs.loop.SYNC_SECONDS", 0.0)
    data, recipe = tiny_data([6, 4, 6], size=16), make_gpu_recipe(method)
    run = run_on_gpu(directory=tmp_path, job="job")
    run.stop.requested = True
    with pytest.raises(Interrupted):
        METHODS[method].condense(data, recipe, run)
    resumed = METHODS[method].condense(data, recipe, run_on_gpu(directory=tmp_path, job="job"))
    assert torch.equal(resumed.images, METHODS[method].condense(data, recipe, run_on_gpu()).images)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_resumed_networks_repeat_to_the_bit(norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.training.trainer.YIELD_EVERY", 2)  # also within an epoch of three steps
    data, test = tiny_data([40, 40], size=16), tiny_data([30, 30], size=16, seed=1)
    protocol = Protocol(network=f"convnet(width=16, depth=2, norm={norm!r})", num_networks=7, epochs=3, batch_size=32)
    tested_weights: list[Tensor] = []
    predict = Trainer.predict

    def record(trainer: Trainer, *args: Any, **options: Any) -> Tensor:
        tested_weights.append(trainer.weights.clone())
        return predict(trainer, *args, **options)

    monkeypatch.setattr(Trainer, "predict", record)
    scores, weights = score_set(data, test, protocol, run_on_gpu()), tested_weights[:]
    tested_weights.clear()
    for step in (5, 25, 50, 70):  # within and at the end of epochs, in the first and the second group of networks
        run = run_on_gpu(directory=tmp_path, job="scores")
        run.progress = StopAtStep(run, step)
        with pytest.raises(Interrupted):
            score_set(data, test, protocol, run)
        overwrite_free_memory()
    resumed = score_set(data, test, protocol, run_on_gpu(directory=tmp_path, job="scores"))
    assert resumed.accuracies == scores.accuracies
    assert len(tested_weights) == 7
    assert all(torch.equal(actual, expected) for actual, expected in zip(tested_weights, weights, strict=True))
    assert not (tmp_path / "checkpoint").exists()


def test_a_parallel_ranking_equals_a_sequential_one(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [
        "convnet(width=32, depth=1)",
        "convnet(width=256, depth=2, norm='batch')",
        "convnet(width=32, depth=2, norm='layer', activation='sigmoid', pooling='max')",
        "convnet(width=32, depth=1, norm='group', activation='leaky_relu', pooling='none')",
        "convnet(width=32, depth=1, norm='none')",
    ]
    train, validation = tiny_data([40, 40], size=16), tiny_data([30, 30], size=16)
    protocol = Protocol(num_networks=2, epochs=3, batch_size=32)

    def rank() -> dict[str, float]:
        rows = rank_architectures(specs, train, validation, protocol, run_on_gpu()).rows
        assert not any(row.reason for row in rows)
        return {row.name: row.accuracy for row in rows}

    parallel = rank()
    monkeypatch.setattr("condenset.search.ranker.max_parallel", lambda _: 1)
    assert parallel == pytest.approx(rank(), abs=0.06)  # a few of 60 images may be close to a decision boundary


@pytest.mark.parametrize("network", ["alexnet(norm='batch')", "vgg11(norm='batch')", "resnet18(norm='batch')"])
def test_trainers_with_a_shared_compiled_network_are_independent(network: str) -> None:
    data = DeviceDataset.from_data(tiny_data([20, 20], size=32), torch.device(GPU))
    protocol = Protocol(network=network, epochs=2, batch_size=16)

    def train(testing: bool) -> list[Tensor]:
        pair = [Trainer(network, data, protocol, ComputeDevice.select(GPU)) for _ in range(2)]
        trainings = [trainer.iter_train(1, position) for position, trainer in enumerate(pair)]
        for _ in zip(*trainings, strict=True):
            if testing:
                pair[0].accuracy(data)
        return [tensor for trainer in pair for tensor in (trainer.weights, *trainer.buffers.values())]

    tested, untested = train(True), train(False)
    assert all(torch.equal(actual, expected) for actual, expected in zip(tested, untested, strict=True))
    assert not torch.equal(tested[0], tested[len(tested) // 2])


def test_pools_and_learned_steps(tmp_path: Path) -> None:
    data = tiny_data([20, 20], size=16)
    train_pool(
        data, tmp_path / "pool", num_networks=2, network=NETWORK, epochs=2, batch_size=16, device=GPU, verbose=False
    )
    condensed = METHODS["dm"].condense(data, make_gpu_recipe("dm", pool=str(tmp_path / "pool")), run_on_gpu())
    assert condensed.images.isfinite().all()
    distilled = METHODS["dd"].condense(data, make_gpu_recipe("dd", iterations=30), run_on_gpu())
    scores = score_set(distilled, data, Protocol(network="lenet", num_networks=3, learned_steps=True), run_on_gpu())
    assert 0 <= scores.mean <= 1


@pytest.mark.filterwarnings("ignore:one class needs")
@pytest.mark.parametrize("method", ["dm", "mmd"])
@pytest.mark.parametrize("counts", [[20, 20, 20], [20, 3, 9]], ids=["equal", "unequal"])
def test_streamed_images_give_the_same_set(tmp_path: Path, method: str, counts: list[int]) -> None:
    data, recipe = tiny_import(tmp_path / "a", counts), make_gpu_recipe(method, allow_fewer=True, iterations=20)
    streamed, in_memory = (
        METHODS[method].condense(data, recipe, run_on_gpu(memory_limit=limit, classes_per_chunk=2))
        for limit in (1000, None)
    )
    assert torch.equal(streamed.images, in_memory.images)


def test_large_random_tensors() -> None:
    key = rng.make_key(0, device=GPU)
    order = rng.permutation(key, 1, 50_000)
    assert torch.equal(order.sort().values, torch.arange(50_000, device=GPU))
    assert torch.equal(order.cpu(), rng.permutation(key.cpu(), 1, 50_000))
    assert 0.49 < float(rng.flat_uniform(key, 0, 70_000_000).mean()) < 0.51


def test_memory_is_freed_without_the_garbage_collector() -> None:
    data, protocol = tiny_data([40, 40], size=16), Protocol(network=NETWORK, num_networks=5, epochs=2, batch_size=32)
    allocated = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            score_set(data, data, protocol, run_on_gpu())
            torch.cuda.synchronize()
            torch._C._cuda_clearCublasWorkspaces()  # one per stream, and the streams vary
            allocated.append(torch.cuda.memory_allocated())
    finally:
        gc.enable()
    assert allocated[-1] <= allocated[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one() -> None:
    data, recipe = tiny_data([6, 6], size=16), make_gpu_recipe("dm")
    first, second = (
        METHODS["dm"].condense(data, recipe, RunContext(compute=ComputeDevice.select(f"cuda:{index}"))).images
        for index in range(2)
    )
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(first, second)


def selfmade(channels: int, size: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(8 * ((size - 1) // 2) ** 2, num_classes),
    )


def test_networks_of_users_repeat() -> None:
    data, network = tiny_data([20, 20], size=16), networks.as_spec(selfmade)
    recipe = make_gpu_recipe("dm", network=network)
    first, second = (METHODS["dm"].condense(data, recipe, run_on_gpu()).images for _ in range(2))
    assert first.isfinite().all()
    assert torch.equal(first, second)
    protocol = Protocol(network=network, num_networks=2, epochs=3, batch_size=16)
    assert (
        score_set(data, data, protocol, run_on_gpu()).accuracies
        == score_set(data, data, protocol, run_on_gpu()).accuracies
    )
