"""Whole steps of methods and of training with kernels against the same steps without, in Triton's interpreter."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

import condenset as cs
from condenset import augment, kernels
from condenset.data.stores.class_store import ClassStore
from condenset.engine import ComputeDevice, rng
from condenset.kernels import augment as augment_kernel
from condenset.kernels import cross_entropy, cutmix, runtime, sgd
from condenset.kernels.conv_norm_pool import conv_norm_relu_pool
from condenset.methods import DMRecipe
from condenset.methods.gradient.dsa import DSARecipe
from condenset.methods.gradient.gradient_matching import GradientMatching
from condenset.methods.matching.dm import DistributionMatching, make_problem
from condenset.runs.context import RunContext
from condenset.training.dataset import DeviceDataset
from condenset.training.protocol import Protocol
from condenset.training.trainer import Trainer
from helpers.reference_dm import tiny_data

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("kernels on CPU tensors need the interpreter", allow_module_level=True)

CPU = ComputeDevice.select("cpu")


def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use kernels on the CPU, also in float32, because the interpreter cannot multiply bfloat16 matrices."""
    monkeypatch.setattr(kernels, "available", lambda tensor: not tensor.is_meta)
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: not (maps.is_meta or runtime._disabled))


def record_launches(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that collects the names of the modules whose kernels are launched."""
    launched = set()
    for module in (augment_kernel, cross_entropy, cutmix, sgd):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            module,
            "launch",
            lambda *args, name=name, launch=module.launch, **options: launched.add(name) or launch(*args, **options),
        )
    return launched


@pytest.mark.parametrize(("norm", "num_steps"), [("instance", 2), ("batch", 1)])
def test_distribution_matching(norm: str, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([4, 4])
    recipe = DMRecipe(ipc=2, network=f"convnet(width=8, depth=2, norm={norm!r})", iterations=4, batch_size=2)

    def run_steps() -> DistributionMatching:
        matching = make_problem(data, [recipe], RunContext(seed=3, compute=CPU))
        for _ in range(num_steps):
            matching.step()
        return matching

    plain = run_steps()
    use_kernels(monkeypatch)
    fast = run_steps()
    torch.testing.assert_close(fast.losses, plain.losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast.sets.images_KICHW, plain.sets.images_KICHW, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("norm", "protocol"),
    [
        ("instance", Protocol(epochs=0, batch_size=4, lr=0.1)),
        ("batch", Protocol(epochs=0, batch_size=4, lr=0.1)),
        ("instance", Protocol.modern(epochs=1, batch_size=4, lr=0.1, cutmix=1.0)),
    ],
)
def test_training(norm: str, protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DeviceDataset.from_data(tiny_data([3, 3]), CPU.device)

    def train() -> Trainer:
        trainer = Trainer(f"convnet(width=8, depth=2, norm={norm!r})", data, protocol, CPU)
        trainer.train(3, "test")
        return trainer

    plain = train()
    use_kernels(monkeypatch)
    launched = record_launches(monkeypatch)
    fast = train()
    assert {"augment", "cross_entropy", "sgd"} <= launched and ("cutmix" in launched) == bool(protocol.cutmix)
    torch.testing.assert_close(fast.weights, plain.weights, rtol=1e-3, atol=1e-3)
    assert fast.accuracy(data) == plain.accuracy(data)


@pytest.mark.parametrize("condensed", [False, True])  # pixels, or normalised images
def test_training_images(condensed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_data([3, 3])
    images = cs.condense(source, "random", ipc=3, device="cpu", verbose=False) if condensed else source
    data, index = DeviceDataset.from_data(images, CPU.device), torch.tensor([4, 0, 2])
    uniform = rng.uniform(rng.make_key(0), 0, torch.arange(3), augment.NUM_UNIFORMS)
    transform = augment.sample_transform(uniform, augment.parse_strategy("color+crop+flip"), 8)
    plain = data.take_augmented(index, transform, torch.float32)
    torch.testing.assert_close(plain, augment.apply(transform, data.images(index)[:, None])[:, 0])
    use_kernels(monkeypatch)
    torch.testing.assert_close(data.take_augmented(index, transform, torch.float32), plain, rtol=1e-4, atol=1e-4)


def test_gradient_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([4, 4])
    recipe = DSARecipe(ipc=2, network="convnet(width=8, depth=2)", batch_size=2, outer_steps=3, inner_epochs=1)

    def run_steps() -> GradientMatching:
        matching = GradientMatching(data, recipe, RunContext(seed=3, compute=CPU), [2] * 2)
        matching.make_step()(0)
        return matching

    plain = run_steps()
    use_kernels(monkeypatch)
    filter_shapes = []
    monkeypatch.setattr(
        "condenset.networks.layers.conv_norm_relu_pool",
        lambda *args, **options: filter_shapes.append(args[1].shape) or conv_norm_relu_pool(*args, **options),  # type: ignore[func-returns-value]
    )
    fast = run_steps()
    assert (2, 8, 3, 3, 3) in filter_shapes  # one copy of the filters per class, for the real gradients of all classes
    torch.testing.assert_close(fast.losses, plain.losses, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.images_NCHW, plain.images_NCHW, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.trainer.weights, plain.trainer.weights, rtol=1e-3, atol=1e-4)


def test_stored_images_in_channels_last_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([4, 4])
    channels_last = data.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    indices = torch.tensor([[0, 1], [4, 6]])
    uniform = rng.uniform(rng.make_key(0), 0, torch.arange(2), augment.NUM_UNIFORMS)
    transform = augment.sample_transform(uniform, (("flip", "crop"),), 8)
    plain = ClassStore(data, CPU.device).take_augmented(indices, transform, torch.float32)
    monkeypatch.setattr(kernels, "available", lambda _: True)
    store = ClassStore(dataclasses.replace(data, images=channels_last), CPU.device)
    torch.testing.assert_close(store.take_augmented(indices, transform, torch.float32), plain)
