"""Hand-written kernels against the plain functions they stand for, in triton's interpreter."""

from __future__ import annotations

import copy
import dataclasses
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import augment, draws, kernels
from condenset.data.store import ClassStore
from condenset.engine import Place
from condenset.engine.step import _captured
from condenset.methods.gradient import GradientMatching
from condenset.methods.matching import Matching, mean_distance
from condenset.recipes import MatchingRecipe, Protocol, SiameseRecipe
from condenset.runs import Run
from condenset.train import Trainer, TrainingSet
from plain import tiny_data
from replayed import capture_on_cpu

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("on tensors of the CPU kernels need the interpreter", allow_module_level=True)
from condenset.kernels import augment as augment_kernel
from condenset.kernels import philox as philox_kernel
from condenset.kernels import runtime
from condenset.kernels.descent import descend
from condenset.kernels.first_block import first_block, first_block_known
from condenset.kernels.norm_pool import norm_relu_pool, norm_relu_pool_known
from condenset.networks.layers import Block

CPU = Place.best("cpu")

KEY = draws.make_key(3, "test")


@pytest.mark.parametrize("num", [0, 1, 5, 1030])
@pytest.mark.parametrize("step", [0, 7, 2**33 + 5])
def test_philox(num: int, step: int) -> None:
    rows = torch.tensor([0, 3, 9])
    now = torch.tensor(step)
    assert torch.equal(philox_kernel.words(KEY, now, rows, num, uniform=False), draws.bits(KEY, step, rows, num))
    assert torch.equal(philox_kernel.words(KEY, now, rows, num, uniform=True), draws.uniform(KEY, step, rows, num))


@pytest.mark.parametrize("rotation", ["rotate", "rotate180"])
@pytest.mark.parametrize(("channels", "size"), [(3, 8), (1, 9), (3, 17)])
def test_augmentation_and_its_gradient(channels: int, size: int, rotation: str) -> None:
    uniform_GU = draws.uniform(KEY, 1, torch.arange(18), augment.NUM_UNIFORMS)
    uniform_GU[:, 0] = (torch.arange(18) % 6 + 0.5) / 6  # every operation three times
    transform = augment.draw(uniform_GU, (*augment.OPERATIONS[:5], rotation), size)
    images = torch.randn(18, 1, channels, size, size, requires_grad=True)
    target = torch.randn(images.shape)
    plain, fast = augment.apply(transform, images), augment_kernel.apply(transform, images, torch.float32)
    torch.testing.assert_close(fast, plain, atol=3e-5, rtol=1e-4)
    (plain_grad,) = torch.autograd.grad((plain * target).sum(), images)
    (fast_grad,) = torch.autograd.grad((fast * target).sum(), images)
    torch.testing.assert_close(fast_grad, plain_grad, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("operations", [augment.OPERATIONS, ("rotate", "cutout"), ("rotate90", "crop"), ("flip",)])
@pytest.mark.parametrize("size", [8, 9])
def test_drawing(size: int, operations: tuple[str, ...], shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    uniform_GU = draws.uniform(KEY, 4, torch.arange(24), augment.NUM_UNIFORMS)
    plain = augment.draw(uniform_GU, operations, size, shared=shared)
    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    for mine, theirs in zip(augment.draw(uniform_GU, operations, size, shared=shared), plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


def test_sampling_normalises_stored_pixels() -> None:
    stored = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    places = torch.tensor([[3, 19, 0], [7, 7, 2]])
    transform = augment.draw(draws.uniform(KEY, 2, torch.arange(2), augment.NUM_UNIFORMS), ("rotate", "color"), 8)
    scale, shift = torch.tensor([0.01, 0.02, 0.03]), torch.tensor([-1.0, -2.0, 0.5])
    fast = augment_kernel.sample(stored, places, transform, scale, shift, torch.float32)
    normalised = stored[places].float() * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(fast, augment.apply(transform, normalised), atol=3e-5, rtol=1e-4)


def plain_block(maps: Tensor, gain: Tensor, bias: Tensor, batch: bool) -> Tensor:
    if batch:
        return F.avg_pool2d(F.relu(F.batch_norm(maps, None, None, gain, bias, training=True)), 2)
    return F.avg_pool2d(F.relu(F.group_norm(maps, len(gain), gain, bias)), 2)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    ("in_channels", "channels", "size", "padding"), [(3, 16, 8, 1), (1, 20, 28, 3), (3, 32, 18, 1), (3, 100, 4, 1)]
)
def test_first_block(in_channels: int, channels: int, size: int, padding: int, batch: bool) -> None:
    torch.manual_seed(size)
    images = (torch.randn(3, in_channels, size, size) + 1.5).requires_grad_()
    weight = (0.3 * torch.randn(channels, in_channels, 3, 3)).requires_grad_()
    offset = torch.randn(channels)  # which the norm takes away
    gain, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    plain = plain_block(F.conv2d(images, weight, offset, padding=padding), gain, bias, batch)
    target, inputs = torch.randn(plain.shape), (images, weight, gain, bias)
    wanted = torch.autograd.grad((plain * target).sum(), inputs)

    out, means, rstds = first_block(images, weight, gain, bias, padding, batch=batch)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-4)
    found = torch.autograd.grad((out * target).sum(), inputs)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
    if batch:
        known = first_block_known(images, weight, gain, bias, padding, means[0], rstds[0])
        torch.testing.assert_close(known, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("programs", [1, 2, 12])
def test_filter_gradients_of_the_first_block_by_class(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.kernels.first_block.num_programs", lambda *_: programs)
    torch.manual_seed(0)
    images, weight, gain = torch.randn(12, 3, 8, 8), 0.3 * torch.randn(20, 3, 3, 3), torch.ones(20)
    copies = weight.expand(3, 20, 3, 3, 3).requires_grad_()
    out, _, _ = first_block(images, copies, gain, 0 * gain, 1)
    target = torch.randn(out.shape)
    (found,) = torch.autograd.grad((out * target).sum(), copies)
    for own, part, aim in zip(found, images.chunk(3), target.chunk(3), strict=True):
        leaf = weight.clone().requires_grad_()
        plain = plain_block(F.conv2d(part, leaf, padding=1), gain, 0 * gain, batch=False)
        torch.testing.assert_close(own, torch.autograd.grad((plain * aim).sum(), leaf)[0], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(16, 8), (20, 32), (33, 9), (100, 4), (16, 36)])
def test_norm_relu_pool(channels: int, size: int, batch: bool) -> None:
    torch.manual_seed(size)
    maps = (torch.randn(3, channels, size, size) + 3).requires_grad_()
    gain, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    plain = plain_block(maps, gain, bias, batch)
    target, inputs = torch.randn(plain.shape), (maps, gain, bias)
    wanted = torch.autograd.grad((plain * target).sum(), inputs)
    out, means, rstds = norm_relu_pool(maps, gain, bias, batch=batch)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-4)
    for mine, theirs in zip(torch.autograd.grad((out * target).sum(), inputs), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)
    if batch:
        known = norm_relu_pool_known(maps, gain, bias, means[0], rstds[0])
        torch.testing.assert_close(known, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("in_channels", "size"), [(3, 8), (3, 9), (8, 8)])
def test_a_block_with_batch_norm_keeps_its_statistics(
    in_channels: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Block(in_channels, 8, size=size, norm="batch", pooling="average")
    fast = copy.deepcopy(plain)

    def run(block: Block) -> list[Tensor]:
        block.train()
        outputs = [block(torch.randn(4, in_channels, size, size, generator=make())) for make in [generator] * 2]
        return [*outputs, block.eval()(torch.ones(2, in_channels, size, size)), *block.norm.buffers()]

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    wanted = run(plain)
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: True)
    with torch.no_grad():
        for mine, theirs in zip(run(fast), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_first_block_statistics_survive_a_mean_far_from_zero() -> None:
    images = 30 + 0.1 * torch.randn(2, 3, 12, 12)
    weight = torch.randn(16, 3, 3, 3)
    weight -= weight.mean((1, 2, 3), keepdim=True)  # edges alone: the mean drops out but at the border
    maps = F.conv2d(images.double(), weight.double(), padding=1)
    _, means, rstds = first_block(images, weight, torch.ones(16), torch.zeros(16), 1)
    torch.testing.assert_close(means.double(), maps.mean((2, 3)), atol=1e-3, rtol=1e-3)
    wanted = (maps.var((2, 3), correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(rstds.double(), wanted, atol=1e-3, rtol=1e-3)


def test_statistics_survive_a_mean_far_from_zero() -> None:
    maps = 300 + 0.01 * torch.randn(2, 16, 12, 12)
    gain, bias = torch.ones(16), torch.zeros(16)
    plain = F.avg_pool2d(F.relu(F.group_norm(maps.double(), 16, gain.double(), bias.double())), 2)
    torch.testing.assert_close(norm_relu_pool(maps, gain, bias)[0].double(), plain, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_a_matching_step_by_kernels_is_the_plain_step(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6, 6])
    recipe = MatchingRecipe(ipc=2, network=f"convnet(width=8, depth=2, norm={norm!r})", iterations=4, batch=3)
    place = Place.best("cpu")

    def steps() -> Matching:
        matching = Matching(data, [recipe], Run(seed=3, place=place), mean_distance)
        for _ in range(2):
            matching.step()
        return matching

    plain = steps()
    monkeypatch.setattr(kernels, "available", lambda tensor: not tensor.is_meta)
    # The interpreter has no bfloat16 product, so float32 takes the kernels here.
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: not maps.is_meta)
    fast = steps()
    torch.testing.assert_close(fast.losses, plain.losses, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast.images_KICHW, plain.images_KICHW, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["instance", "batch"])
def test_training_by_kernels_is_plain_training(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, data = Place.best("cpu"), TrainingSet.of(tiny_data([6, 6, 6]), torch.device("cpu"))
    protocol = Protocol(epochs=1, batch=5, lr=0.1)

    def trained() -> Trainer:
        trainer = Trainer(f"convnet(width=8, depth=2, norm={norm!r})", data, protocol, place)
        trainer.train(3, "test")
        return trainer

    plain = trained()
    monkeypatch.setattr(kernels, "available", lambda tensor: not tensor.is_meta)
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: not maps.is_meta)
    fast = trained()
    torch.testing.assert_close(fast.weights, plain.weights, rtol=1e-3, atol=1e-3)
    assert fast.accuracy(data) == plain.accuracy(data)


def test_a_step_of_gradient_matching_by_kernels_is_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6, 6])
    recipe = SiameseRecipe(ipc=2, network="convnet(width=8, depth=2)", batch=3, outer=3, inner=2)
    place = Place.best("cpu")

    def steps() -> GradientMatching:
        matching = GradientMatching(data, recipe, Run(seed=3, place=place), [2] * 3)
        step = matching.prepare()
        for number in range(2):
            step(number)
        return matching

    plain = steps()
    monkeypatch.setattr(kernels, "available", lambda tensor: not tensor.is_meta)
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: not (maps.is_meta or runtime._plain))
    blocks = []
    monkeypatch.setattr(
        "condenset.networks.layers.first_block", lambda *a, **k: blocks.append(a[1].shape) or first_block(*a, **k)
    )
    fast = steps()
    assert (3, 8, 3, 3, 3) in blocks  # real gradients of all classes: a copy of the filters for each
    torch.testing.assert_close(fast.losses, plain.losses, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.images_NCHW, plain.images_NCHW, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.trainer.weights, plain.trainer.weights, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("num", [5, 1024, 3000])
def test_a_step_of_gradient_descent(num: int) -> None:
    torch.manual_seed(num)
    weights, velocity, gradient = torch.randn(3, num)
    lr, clock, position = torch.tensor(0.1), torch.tensor(7), torch.tensor(20)
    speed = 0.9 * velocity + (gradient + 0.01 * weights)
    wanted = weights - 0.1 * speed
    descend(weights, velocity, gradient, lr, clock, position, 6, momentum=0.9, decay=0.01)
    torch.testing.assert_close(velocity, speed)
    torch.testing.assert_close(weights, wanted)
    assert (int(clock), int(position)) == (8, 26)


def test_kernels_refuse_to_be_differentiated_twice() -> None:
    maps, gain, bias = torch.randn(2, 16, 4, 4, requires_grad=True), torch.ones(16), torch.zeros(16)
    (slope,) = torch.autograd.grad(norm_relu_pool(maps, gain, bias)[0].square().sum(), maps, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()


def test_blocks_can_be_told_to_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "available", lambda tensor: True)
    maps = torch.zeros(1, dtype=torch.bfloat16)
    assert kernels.available_for_blocks(maps)
    with kernels.plain(blocks_only=True), kernels.plain(blocks_only=True):
        assert not kernels.available_for_blocks(maps)
    assert kernels.available_for_blocks(maps)


def test_images_whose_channels_lie_last_in_memory_are_taken_right(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([4, 4])
    turned = data.images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    places = torch.tensor([[0, 1], [4, 6]])
    uniform = draws.uniform(draws.make_key(0), 0, torch.arange(2), augment.NUM_UNIFORMS)
    transform = augment.draw(uniform, ("flip", "crop"), 8)
    plain = ClassStore(data, CPU.device).take_augmented(places, transform, torch.float32)
    monkeypatch.setattr(kernels, "available", lambda _: True)
    store = ClassStore(dataclasses.replace(data, images=turned), CPU.device)
    torch.testing.assert_close(store.take_augmented(places, transform, torch.float32), plain)


@pytest.fixture
def switches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU, as far as anybody asks, and kernels that nobody has switched off yet."""
    monkeypatch.setattr(runtime, "_off", set())
    monkeypatch.setattr(runtime, "_tried", [])
    return SimpleNamespace(device=torch.device("cuda"))


def test_without_a_compiler_kernels_are_switched_off_before_any_is_needed(
    switches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    monkeypatch.setattr(runtime, "_write_one", None)  # as good as a kernel that cannot be built
    with pytest.warns(UserWarning, match="without hand-written kernels, several times slower"):
        assert not kernels.available(switches)
    assert not kernels.available(switches)


def test_kernels_are_switched_off_only_where_a_step_works_without_them(
    switches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_on_cpu(monkeypatch)
    runtime._tried.append(True)
    monkeypatch.setattr(kernels, "available", lambda _: runtime.available(switches))
    state, wrong = torch.zeros(2), True

    def step() -> None:
        state.add_(1)
        if wrong or kernels.available(state):
            raise RuntimeError("it cannot be")

    with pytest.raises(RuntimeError, match="it cannot be"):
        _captured(step, [state], CPU.device)
    assert kernels.available(state)
    wrong, state[:] = False, 0
    with pytest.warns(UserWarning, match="without hand-written kernels, several times slower: it cannot be"):
        replay = _captured(step, [state], CPU.device)
    assert state.tolist() == [0, 0] and not kernels.available(state)
    replay()
    assert state.tolist() == [1, 1]
