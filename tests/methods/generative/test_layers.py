"""Layers of generators and discriminators, and the sizes of both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from condenset.methods.generative.discriminators import Discriminator, Encoder
from condenset.methods.generative.generators import LATENT_SIZE, ConvGenerator, count_doublings
from condenset.methods.generative.layers import (
    ConditionalBatchNorm,
    SpectralConv2d,
    SpectralLinear,
    divide_by_spectral_norm,
)


def test_spectral_norm_is_the_largest_singular_value() -> None:
    torch.manual_seed(0)
    conv, linear = SpectralConv2d(4, 6, 3, padding=1), SpectralLinear(5, 7)
    for layer, inputs in ((conv, torch.randn(2, 4, 5, 5)), (linear, torch.randn(2, 5))):
        for _ in range(60):  # every pass in training mode is a step of the power iteration
            layer(inputs)
        normalized = divide_by_spectral_norm(layer.weight, layer.direction, update=False)
        singular = torch.linalg.svdvals(layer.weight.flatten(1))[0]
        torch.testing.assert_close(normalized, layer.weight / singular, rtol=1e-2, atol=1e-3)


def test_gradient_of_the_spectral_norm_is_that_of_the_svd() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    direction, cotangent = torch.full((4,), 0.5, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    for _ in range(500):
        normalized = divide_by_spectral_norm(weight, direction, update=True)
    (gradient,) = torch.autograd.grad(normalized, weight, cotangent)
    (expected,) = torch.autograd.grad(weight / torch.linalg.svdvals(weight)[0], weight, cotangent)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)


def test_evaluation_mode_keeps_the_singular_vector() -> None:
    layer = SpectralLinear(5, 7).eval()
    before = layer.direction.clone()
    layer(torch.randn(2, 5))
    assert torch.equal(layer.direction, before)


def test_scale_and_shift_of_batch_norm_depend_on_the_class() -> None:
    norm, maps = ConditionalBatchNorm(3, 2), torch.randn(8, 3, 4, 4)
    with torch.no_grad():
        norm.scale.weight.copy_(torch.tensor([[0.0, 1.0]]).expand(3, 2))
        norm.shift.weight.copy_(torch.tensor([[0.0, 5.0]]).expand(3, 2))
    plain = nn.BatchNorm2d(3, affine=False)(maps)
    first, second = (norm(maps, torch.eye(2)[torch.full((8,), label)]) for label in (0, 1))
    torch.testing.assert_close(first, plain)
    torch.testing.assert_close(second, 2 * plain + 5)


@pytest.mark.parametrize(("size", "doublings"), [(3, 0), (8, 1), (28, 2), (30, 2), (32, 3), (64, 4)])
def test_generator_and_discriminator_fit_the_image_size(size: int, doublings: int) -> None:
    assert count_doublings(size) == doublings
    generator = ConvGenerator(channels=3, size=size, num_classes=2, width=4, mean=(0.5,) * 3, std=(0.25,) * 3)
    labels = torch.tensor([0, 1, 1])
    images = generator(torch.randn(3, LATENT_SIZE), labels)
    assert images.shape == (3, 3, size, size)
    assert images.abs().max() <= 2  # pixels are between 0 and 1
    for num_features in (None, 5):
        judge = Discriminator(channels=3, size=size, num_classes=2, width=4, num_features=num_features)
        scores, features = judge(images, labels)
        assert scores.shape == (3,) and features.shape == (3, num_features or 4)
    mean, log_variance = Encoder(channels=3, size=size, width=4)(images)
    assert mean.shape == log_variance.shape == (3, LATENT_SIZE)
