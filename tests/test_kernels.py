"""Hand-written kernels against the plain functions they stand for, in triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from condenset import augment, draws, kernels
from condenset.engine import Place
from condenset.methods.gradient import GradientMatching
from condenset.methods.matching import Matching, mean_distance
from condenset.recipes import MatchingRecipe, SiameseRecipe
from condenset.runs import Run
from plain import tiny_data

pytest.importorskip("triton")
from condenset.kernels import augment as augment_kernel
from condenset.kernels import philox as philox_kernel
from condenset.kernels import runtime
from condenset.kernels.first_block import first_block
from condenset.kernels.norm_pool import norm_relu_pool

KEY = draws.make_key(3, "test")


@pytest.mark.parametrize("num", [1, 5, 1030])
@pytest.mark.parametrize("step", [0, 7, 2**33 + 5])
def test_philox(num: int, step: int) -> None:
    rows = torch.tensor([0, 3, 9])
    now = torch.tensor(step)
    assert torch.equal(philox_kernel.words(KEY, now, rows, num, uniform=False), draws.bits(KEY, step, rows, num))
    assert torch.equal(philox_kernel.words(KEY, now, rows, num, uniform=True), draws.uniform(KEY, step, rows, num))


@pytest.mark.parametrize(("channels", "size"), [(3, 8), (1, 9), (3, 17)])
def test_augmentation_and_its_gradient(channels: int, size: int) -> None:
    uniform_GU = draws.uniform(KEY, 1, torch.arange(18), augment.NUM_UNIFORMS)
    uniform_GU[:, 0] = (torch.arange(18) % 6 + 0.5) / 6  # every operation three times
    transform = augment.draw(uniform_GU, augment.OPERATIONS, size)
    images = torch.randn(18, 1, channels, size, size, requires_grad=True)
    target = torch.randn(images.shape)
    plain, fast = augment.apply(transform, images), augment_kernel.apply(transform, images, torch.float32)
    torch.testing.assert_close(fast, plain, atol=3e-5, rtol=1e-4)
    (plain_grad,) = torch.autograd.grad((plain * target).sum(), images)
    (fast_grad,) = torch.autograd.grad((fast * target).sum(), images)
    torch.testing.assert_close(fast_grad, plain_grad, atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("operations", [augment.OPERATIONS, ("rotate", "cutout"), ("flip",)])
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


@pytest.mark.parametrize(
    ("in_channels", "channels", "size", "padding"), [(3, 16, 8, 1), (1, 20, 28, 3), (3, 32, 9, 1), (3, 100, 4, 1)]
)
def test_blocks(in_channels: int, channels: int, size: int, padding: int) -> None:
    torch.manual_seed(size)
    images = torch.randn(3, in_channels, size, size, requires_grad=True)
    weight, offset = 0.3 * torch.randn(channels, in_channels, 3, 3), torch.randn(channels)
    gain, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    maps = F.conv2d(images, weight, offset, padding=padding)
    plain = F.avg_pool2d(F.relu(F.group_norm(maps, channels, gain, bias)), 2)
    target = torch.randn(plain.shape)
    wanted = torch.autograd.grad((plain * target).sum(), (images, maps, gain, bias))

    first = first_block(images, weight, gain.detach(), bias.detach(), padding)
    torch.testing.assert_close(first, plain, atol=1e-5, rtol=1e-4)
    (grad,) = torch.autograd.grad((first * target).sum(), images)
    torch.testing.assert_close(grad, wanted[0], atol=1e-4, rtol=1e-3)

    leaf = maps.detach().requires_grad_()
    later = norm_relu_pool(leaf, gain, bias)
    torch.testing.assert_close(later, plain, atol=1e-5, rtol=1e-4)
    found = torch.autograd.grad((later * target).sum(), (leaf, gain, bias))
    for mine, theirs in zip(found, wanted[1:], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_statistics_survive_a_mean_far_from_zero() -> None:
    maps = 300 + 0.01 * torch.randn(2, 16, 12, 12)
    gain, bias = torch.ones(16), torch.zeros(16)
    plain = F.avg_pool2d(F.relu(F.group_norm(maps.double(), 16, gain.double(), bias.double())), 2)
    torch.testing.assert_close(norm_relu_pool(maps, gain, bias).double(), plain, atol=2e-2, rtol=1e-2)


def test_a_matching_step_by_kernels_is_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([6, 6, 6])
    recipe = MatchingRecipe(ipc=2, network="convnet(width=8, depth=2)", iterations=4, batch=3)
    place = Place.best("cpu")

    def steps() -> Matching:
        matching = Matching(data, recipe, Run(seed=3, place=place), [2] * 3, mean_distance)
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
    fast = steps()
    torch.testing.assert_close(fast.losses, plain.losses, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.images_NCHW, plain.images_NCHW, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(fast.trainer.weights, plain.trainer.weights, rtol=1e-3, atol=1e-4)


def test_kernels_refuse_to_be_differentiated_twice() -> None:
    maps, gain, bias = torch.randn(2, 16, 4, 4, requires_grad=True), torch.ones(16), torch.zeros(16)
    (slope,) = torch.autograd.grad(norm_relu_pool(maps, gain, bias).square().sum(), maps, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        slope.sum().backward()


def test_blocks_can_be_told_to_take_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "available", lambda tensor: True)
    maps = torch.zeros(1, dtype=torch.bfloat16)
    assert kernels.available_for_blocks(maps)
    with kernels.plain_blocks(), kernels.plain_blocks():
        assert not kernels.available_for_blocks(maps)
    assert kernels.available_for_blocks(maps)
