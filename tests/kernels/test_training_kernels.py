"""Kernels of a training step against their PyTorch equivalents, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from condenset import kernels, networks
from condenset.engine import rng

pytest.importorskip("triton")
if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("kernels on CPU tensors need the interpreter", allow_module_level=True)
from condenset.kernels import cross_entropy as cross_entropy_kernel
from condenset.kernels import cutmix as cutmix_kernel
from condenset.kernels.image_sums import sum_images
from condenset.kernels.sgd import sgd_step
from condenset.training.cross_entropy import logit_gradient
from condenset.training.cutmix import make_box
from condenset.training.dataset import take_batch

KEY = rng.make_key(3, "test")


@pytest.mark.parametrize(("channels", "size"), [(1, 9), (3, 8), (3, 20)])  # the last one has more values than a block
def test_cutmix(channels: int, size: int) -> None:
    images, areas = torch.rand(4, channels, size, size), []
    for step in range(20):
        uniform_4 = rng.uniform(KEY, step, torch.tensor([0]), 4)[0]
        box, (mixed, share) = make_box(uniform_4, size, 0.8), cutmix_kernel.mix(images, uniform_4, 0.8)
        assert torch.equal(mixed, box.mix(images))
        torch.testing.assert_close(share, box.share)
        areas.append(float(1 - share))
    assert min(areas) == 0 and max(areas) > 0.3


@pytest.mark.parametrize("share", [None, 0.3])
@pytest.mark.parametrize("num_classes", [2, 10, 100])
def test_gradient_of_cross_entropy(num_classes: int, share: float | None) -> None:
    logits, labels = 10 * torch.randn(5, num_classes), torch.randint(num_classes, (5,))
    weight = None if share is None else torch.tensor(share)
    gradient = cross_entropy_kernel.gradient(logits.T.contiguous().T, labels, weight)
    torch.testing.assert_close(gradient, logit_gradient(logits, labels, weight))


@pytest.mark.parametrize("num", [5, 1024, 3000])
def test_sgd_step(num: int) -> None:
    torch.manual_seed(num)
    weights, velocity, gradient = torch.randn(3, num)
    lr, clock, position = torch.tensor(0.1), torch.tensor(7), torch.tensor(20)
    speed = 0.9 * velocity + (gradient + 0.01 * weights)
    expected = weights - 0.1 * speed
    sgd_step(weights, velocity, gradient, lr, clock, position, 6, momentum=0.9, weight_decay=0.01)
    torch.testing.assert_close(velocity, speed)
    torch.testing.assert_close(weights, expected)
    assert (int(clock), int(position)) == (8, 26)


@pytest.mark.parametrize(("num", "position", "batch_size"), [(7, 2, 4), (7, 5, 4), (600, 100, 300)])
def test_take_batch(num: int, position: int, batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order, labels = rng.permutation(KEY, num, num), torch.arange(num) % 5
    arguments = order, torch.tensor(position), labels, torch.arange(batch_size)
    plain = take_batch(*arguments)
    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    fast = take_batch(*arguments)
    assert torch.equal(fast[0], plain[0]) and torch.equal(fast[1], plain[1])
    assert torch.equal(plain[0], order[[min(position + offset, num - 1) for offset in range(batch_size)]])


@pytest.mark.parametrize(("num", "channels"), [(1, 8), (300, 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sum_images(num: int, channels: int, dtype: torch.dtype) -> None:
    values = torch.randn(2, num, channels)
    torch.testing.assert_close(sum_images(values, dtype), values.sum(1).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_casts_of_parameters_and_their_gradient(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks.build("convnet(width=8, depth=2)", channels=3, size=8, num_classes=5)
    layout = networks.FlatParameters(network, torch.device("cpu"))
    weights = torch.randn(layout.num, requires_grad=True)
    plain = layout.unflatten(weights, dtype)
    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    fast = layout.cast(weights, dtype)
    assert {name: parameter.dtype for name, parameter in fast.items()} == dict.fromkeys(plain, dtype)
    torch.testing.assert_close(fast, plain)  # not equal: the interpreter rounds bfloat16 towards zero
    assert fast["blocks.1.conv.weight"].is_contiguous(memory_format=torch.channels_last)
    assert all(fast[name].is_contiguous() for name in plain if name != "blocks.1.conv.weight")
    used = [name for name in plain if name != "blocks.0.conv.bias"]  # which has no effect before a norm
    targets = [torch.randn(plain[name].shape, dtype=dtype) for name in used]
    plain_grad, fast_grad = (
        torch.autograd.grad([parameters[name] for name in used], weights, targets) for parameters in (plain, fast)
    )
    assert torch.equal(fast_grad[0], plain_grad[0])


def test_batch_norms_are_not_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    network = networks.build("convnet(width=8, depth=2, norm='batch')", channels=3, size=8, num_classes=5)
    layout = networks.FlatParameters(network, torch.device("cpu"))
    monkeypatch.setattr(kernels, "available", lambda tensor: True)
    parameters = layout.cast(torch.randn(layout.num), torch.bfloat16)
    assert parameters["blocks.0.norm.weight"].dtype == torch.float32
    assert parameters["blocks.0.conv.weight"].dtype == torch.bfloat16
