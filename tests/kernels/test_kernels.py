"""Kernels against their PyTorch equivalents, in Triton's interpreter."""

from __future__ import annotations

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import augment, kernels
from condenset.data.partition import NormalizedParts, PartLayout
from condenset.engine import rng

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("kernels on CPU tensors need the interpreter", allow_module_level=True)
from condenset.kernels import augment as augment_kernel
from condenset.kernels import philox as philox_kernel
from condenset.kernels.conv_norm_pool import conv_norm_relu_pool, conv_norm_relu_pool_eval
from condenset.kernels.norm_pool import norm_relu_pool, norm_relu_pool_eval
from condenset.networks.layers import Block

KEY = rng.make_key(3, "test")


@pytest.mark.parametrize(("num", "step"), [(0, 0), (1, 0), (5, 2**33 + 5), (1030, 7)])
def test_random_words(num: int, step: int) -> None:
    rows = torch.tensor([0, 3, 9])
    now = torch.tensor(step)
    assert torch.equal(
        philox_kernel.random_words(KEY, now, rows, num, uniform=False), rng.random_bits(KEY, step, rows, num)
    )
    assert torch.equal(philox_kernel.random_words(KEY, now, rows, num, uniform=True), rng.uniform(KEY, step, rows, num))


@pytest.mark.parametrize(
    ("channels", "size", "rotation"),
    [(3, 8, "rotate"), (1, 9, "rotate180"), (3, 13, "rotate180")],  # the last one has more pixels than a block
)
def test_augmentation_and_its_gradient(channels: int, size: int, rotation: str) -> None:
    uniform_GU = rng.uniform(KEY, 1, torch.arange(12), augment.NUM_UNIFORMS)
    uniform_GU[:, 0] = (torch.arange(12) % 6 + 0.5) / 6  # every operation twice
    transform = augment.sample_transform(uniform_GU, ((*augment.OPERATIONS[:5], rotation),), size)
    check_augmentation(transform, torch.randn(12, 1, channels, size, size, requires_grad=True))


def check_augmentation(transform: augment.Transform, images: Tensor) -> None:
    target = torch.randn(images.shape)
    plain, fast = augment.apply(transform, images), augment_kernel.apply(transform, images, torch.float32)
    torch.testing.assert_close(fast, plain, atol=3e-5, rtol=1e-4)
    (plain_grad,) = torch.autograd.grad((plain * target).sum(), images)
    (fast_grad,) = torch.autograd.grad((fast * target).sum(), images)
    torch.testing.assert_close(fast_grad, plain_grad, atol=3e-5, rtol=1e-4)


def test_stacked_augmentation_and_its_gradient() -> None:
    uniform_GU = rng.uniform(KEY, 1, torch.arange(12), augment.NUM_UNIFORMS)
    transform = augment.sample_transform(uniform_GU, augment.parse_strategy("flip+color+crop+cutout+scale+rotate"), 9)
    check_augmentation(transform, torch.randn(12, 1, 3, 9, 9, requires_grad=True))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "strategy", [augment.DEFAULT_STRATEGY, "rotate_cutout", "rotate90_crop", "flip", "flip+color+crop_scale_rotate"]
)
@pytest.mark.parametrize("size", [8, 9])
def test_drawing_of_parameters(size: int, strategy: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    uniform_GU = rng.uniform(KEY, 4, torch.arange(24), augment.NUM_UNIFORMS)
    stages = augment.parse_strategy(strategy)
    plain = augment.sample_transform(uniform_GU, stages, size, shared=shared)
    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    fast = augment.sample_transform(uniform_GU, stages, size, shared=shared)
    for actual, expected in zip(fast, plain, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-6)


def test_sampling_normalizes_stored_pixels() -> None:
    stored = torch.randint(0, 256, (20, 3, 8, 8), dtype=torch.uint8)
    indices = torch.tensor([[3, 19, 0], [7, 7, 2]])
    transform = augment.sample_transform(
        rng.uniform(KEY, 2, torch.arange(2), augment.NUM_UNIFORMS), (("rotate", "color"),), 8
    )
    scale, shift = torch.tensor([0.01, 0.02, 0.03]), torch.tensor([-1.0, -2.0, 0.5])
    fast = augment_kernel.take_augmented(stored, indices, transform, scale, shift, torch.float32)
    normalized = stored[indices].float() * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(fast, augment.apply(transform, normalized), atol=3e-5, rtol=1e-4)


def reference_block(maps: Tensor, gain: Tensor, bias: Tensor, batch_norm: bool) -> Tensor:
    if batch_norm:
        return F.avg_pool2d(F.relu(F.batch_norm(maps, None, None, gain, bias, training=True)), 2)
    return F.avg_pool2d(F.relu(F.group_norm(maps, len(gain), gain, bias)), 2)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(
    ("in_channels", "channels", "size", "padding"),
    [(3, 16, 8, 1), (1, 20, 18, 3), (3, 100, 4, 1)],  # one block; several blocks of pixels; several of channels
)
def test_conv_norm_relu_pool(
    in_channels: int, channels: int, size: int, padding: int, batch_norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condenset.kernels.conv_norm_pool.num_programs", lambda num, *_: min(num, 2))
    torch.manual_seed(size)
    images = (torch.randn(3, in_channels, size, size) + 1.5).requires_grad_()
    weight = (0.3 * torch.randn(channels, in_channels, 3, 3)).requires_grad_()
    offset = torch.randn(channels)  # removed by the norm
    gain, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    plain = reference_block(F.conv2d(images, weight, offset, padding=padding), gain, bias, batch_norm)
    target, inputs = torch.randn(plain.shape), (images, weight, gain, bias)
    expected_grads = torch.autograd.grad((plain * target).sum(), inputs)

    out, means, rstds = conv_norm_relu_pool(images, weight, gain, bias, padding, batch_norm=batch_norm)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-4)
    grads = torch.autograd.grad((out * target).sum(), inputs)
    for actual, expected in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-3)
    if batch_norm:
        evaluated = conv_norm_relu_pool_eval(images, weight, gain, bias, padding, means[0], rstds[0])
        torch.testing.assert_close(evaluated, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("programs", [1, 4, 12])  # per class: 1, 2, and one for each image
def test_filter_gradients_per_class(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.kernels.conv_norm_pool.num_programs", lambda *_: programs)
    torch.manual_seed(0)
    images, weight, gain = torch.randn(6, 3, 8, 8), 0.3 * torch.randn(20, 3, 3, 3), torch.ones(20)
    copies = weight.expand(2, 20, 3, 3, 3).requires_grad_()
    out, _, _ = conv_norm_relu_pool(images, copies, gain, 0 * gain, 1)
    target = torch.randn(out.shape)
    (grads,) = torch.autograd.grad((out * target).sum(), copies)
    for actual, class_images, class_target in zip(grads, images.chunk(2), target.chunk(2), strict=True):
        leaf = weight.clone().requires_grad_()
        plain = reference_block(F.conv2d(class_images, leaf, padding=1), gain, 0 * gain, batch_norm=False)
        (expected,) = torch.autograd.grad((plain * class_target).sum(), leaf)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(16, 8), (20, 32), (33, 9), (100, 4), (16, 36)])
def test_norm_relu_pool(channels: int, size: int, batch_norm: bool) -> None:
    torch.manual_seed(size)
    maps = (torch.randn(2, channels, size, size) + 3).requires_grad_()
    gain, bias = (torch.randn(channels, requires_grad=True) for _ in range(2))
    plain = reference_block(maps, gain, bias, batch_norm)
    target, inputs = torch.randn(plain.shape), (maps, gain, bias)
    expected_grads = torch.autograd.grad((plain * target).sum(), inputs)
    out, means, rstds = norm_relu_pool(maps, gain, bias, batch_norm=batch_norm)
    torch.testing.assert_close(out, plain, atol=1e-5, rtol=1e-4)
    grads = torch.autograd.grad((out * target).sum(), inputs)
    for actual, expected in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-3)
    other_layout, _, _ = norm_relu_pool(maps, gain, bias, batch_norm=batch_norm, layout=torch.contiguous_format)
    assert torch.equal(other_layout, out)
    for grad, expected in zip(torch.autograd.grad(other_layout, inputs, target), grads, strict=True):
        torch.testing.assert_close(grad, expected)
    if batch_norm:
        evaluated = norm_relu_pool_eval(maps, gain, bias, means[0], rstds[0])
        torch.testing.assert_close(evaluated, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("in_channels", "size"), [(3, 8), (3, 9), (8, 8)])
def test_a_block_with_batch_norm_updates_its_running_statistics(
    in_channels: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Block(in_channels, 8, size=size, norm="batch", pooling="average")
    fast = copy.deepcopy(plain)

    def run(block: Block) -> list[Tensor]:
        block.train()
        images = torch.randn(4, in_channels, size, size, generator=torch.Generator().manual_seed(1))
        outputs = [block(images) for _ in range(2)]
        return [*outputs, block.eval()(torch.ones(2, in_channels, size, size)), *block.norm.buffers()]

    expected_tensors = run(plain)
    monkeypatch.setattr(kernels, "available_for_blocks", lambda maps: True)
    with torch.no_grad():
        for actual, expected in zip(run(fast), expected_tensors, strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_statistics_of_conv_norm_relu_pool_are_exact_for_a_large_mean() -> None:
    images = 30 + 0.1 * torch.randn(2, 3, 12, 12)
    weight = torch.randn(16, 3, 3, 3)
    weight -= weight.mean((1, 2, 3), keepdim=True)  # the mean matters at the border only
    maps = F.conv2d(images.double(), weight.double(), padding=1)
    _, means, rstds = conv_norm_relu_pool(images, weight, torch.ones(16), torch.zeros(16), 1)
    torch.testing.assert_close(means.double(), maps.mean((2, 3)), atol=1e-3, rtol=1e-3)
    expected = (maps.var((2, 3), correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(rstds.double(), expected, atol=1e-3, rtol=1e-3)


def test_statistics_of_norm_relu_pool_are_exact_for_a_large_mean() -> None:
    maps = 300 + 0.01 * torch.randn(2, 16, 12, 12)
    gain, bias = torch.ones(16), torch.zeros(16)
    plain = F.avg_pool2d(F.relu(F.group_norm(maps.double(), 16, gain.double(), bias.double())), 2)
    torch.testing.assert_close(norm_relu_pool(maps, gain, bias)[0].double(), plain, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize(("channels", "size", "partition"), [(3, 8, 2), (1, 9, 3), (3, 20, 2)])
def test_low_frequencies(channels: int, size: int, partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mean, std = (0.5, 0.3, 0.4)[:channels], (0.2, 0.3, 0.25)[:channels]
    parts = NormalizedParts(PartLayout(partition, "dct"), mean, std, torch.device("cpu"))
    stored = torch.randn(2, 1, channels, size, size, requires_grad=True)
    plain = parts.decode(stored)
    target = torch.randn(plain.shape)
    (plain_grad,) = torch.autograd.grad((plain * target).sum(), stored)
    plain_clamped = stored.detach().clone()
    parts.clamp_(plain_clamped)

    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    monkeypatch.setattr("condenset.data.partition.decode_frequencies", None)  # used by the PyTorch code alone
    fast = parts.decode(stored)
    torch.testing.assert_close(fast, plain, atol=3e-5, rtol=1e-4)
    (grad,) = torch.autograd.grad((fast * target).sum(), stored)
    torch.testing.assert_close(grad, plain_grad, atol=3e-5, rtol=1e-4)
    monkeypatch.setattr("condenset.data.partition.encode_frequencies", None)
    clamped = stored.detach().clone()
    parts.clamp_(clamped)
    torch.testing.assert_close(clamped, plain_clamped, atol=3e-5, rtol=1e-4)
    assert not torch.equal(clamped, stored)


def test_kernels_have_no_second_derivative() -> None:
    maps, gain, bias = torch.randn(2, 16, 4, 4, requires_grad=True), torch.ones(16), torch.zeros(16)
    (grad,) = torch.autograd.grad(norm_relu_pool(maps, gain, bias)[0].square().sum(), maps, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
