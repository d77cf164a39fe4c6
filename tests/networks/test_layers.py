"""Norms, activations and pooling layers against their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.networks.layers import ACTIVATIONS, NORMS, POOLINGS, AveragePool, Block

CHANNELS, SIZE = 8, 6


def standardize(maps: Tensor, dims: tuple[int, ...]) -> Tensor:
    mean = maps.mean(dim=dims, keepdim=True)
    variance = (maps - mean).square().mean(dim=dims, keepdim=True)
    return (maps - mean) / (variance + 1e-5).sqrt()


def standardize_groups(maps: Tensor) -> Tensor:
    return standardize(maps.unflatten(1, (4, CHANNELS // 4)), (2, 3, 4)).flatten(1, 2)


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda maps: maps,
    "batch": lambda maps: standardize(maps, (0, 2, 3)),
    "layer": lambda maps: standardize(maps, (1, 2, 3)),
    "instance": lambda maps: standardize(maps, (2, 3)),
    "group": standardize_groups,
}
AFFINE_SHAPE = {
    "batch": (CHANNELS,),
    "layer": (CHANNELS, SIZE, SIZE),
    "instance": (CHANNELS,),
    "group": (CHANNELS,),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm_equals_its_formula(name: str) -> None:
    maps = 3 * torch.randn(5, CHANNELS, SIZE, SIZE) + 2
    norm = NORMS[name](CHANNELS, SIZE)
    torch.testing.assert_close(norm(maps), FORMULAS[name](maps))
    assert {tuple(parameter.shape) for parameter in norm.parameters()} == (
        {AFFINE_SHAPE[name]} if name != "none" else set()
    )


def test_activations() -> None:
    x = torch.linspace(-4, 4, 33)
    expected = {
        "sigmoid": 1 / (1 + torch.exp(-x)),
        "relu": x.clamp(min=0),
        "leaky_relu": torch.where(x > 0, x, 0.01 * x),
        "swish": x / (1 + torch.exp(-x)),
    }
    assert set(ACTIVATIONS) == set(expected)
    for name, make in ACTIVATIONS.items():
        torch.testing.assert_close(make()(x), expected[name])


def test_poolings() -> None:
    maps = torch.randn(2, 3, 7, 7)
    windows = (
        maps[..., :6, :6].unflatten(-1, (3, 2)).unflatten(-3, (3, 2))
    )  # (2, 3, 3, 2, 3, 2); the odd edge is left out
    expected = {"none": maps, "max": windows.amax((-3, -1)), "average": windows.mean((-3, -1))}
    assert set(POOLINGS) == set(expected)
    for name, make in POOLINGS.items():
        torch.testing.assert_close(make()(maps), expected[name])


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("padding", [None, 4])
def test_block_computes_its_output_size(pooling: str, kernel: int, padding: int | None) -> None:
    block = Block(3, 4, size=9, kernel=kernel, padding=padding, norm="layer", pooling=pooling)
    assert block(torch.randn(2, 3, 9, 9)).shape == (2, 4, block.size, block.size)


def test_block_order() -> None:
    block = Block(3, 4, size=8, norm="instance", activation="sigmoid", pooling="max")
    images = torch.randn(2, 3, 8, 8)
    expected = torch.nn.functional.max_pool2d(torch.sigmoid(standardize(block.conv(images), (2, 3))), 2)
    torch.testing.assert_close(block(images), expected)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 4, 6, 10), (2, 3, 7, 8), (1, 2, 5, 5), (1, 1, 2, 130)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_average_pooling_equals_pytorch(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    maps = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    actual, expected = AveragePool(2)(maps), F.avg_pool2d(maps, 2)
    torch.testing.assert_close(actual, expected)
    output_grad = torch.randn_like(expected)
    (actual_grad,) = torch.autograd.grad(actual, maps, output_grad)
    (expected_grad,) = torch.autograd.grad(expected, maps, output_grad)
    torch.testing.assert_close(actual_grad, expected_grad)


def test_the_cached_pooling_matrix_of_inference_mode_works_with_gradients() -> None:
    with torch.inference_mode(), torch.device("meta"):
        assert AveragePool(2)(torch.randn(1, 1, 12, 12, device="cpu")).device.type == "cpu"
    AveragePool(2)(torch.randn(1, 1, 12, 12).requires_grad_()).sum().backward()
