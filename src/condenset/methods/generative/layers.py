"""Layers of generators and discriminators: spectral norm, conditional batch norm and residual blocks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def to_channels_last(maps: Tensor) -> Tensor:
    """Return maps in the layout in which convolutions and norms are faster, measured on a CPU."""
    if maps.device.type == "mps":  # some versions of PyTorch have wrong gradients of batch norm there
        return maps
    return maps.to(memory_format=torch.channels_last)


def divide_by_spectral_norm(weight: Tensor, direction: Tensor, *, update: bool) -> Tensor:
    """Return a weight divided by its largest singular value (Miyato et al., 2018).

    The singular value comes from one step of power iteration. Products and sums, unlike matrix products, keep their
    precision under autocast.

    Args:
        weight: The weight. Its rows are the output channels.
        direction: The left singular vector of the last step.
        update: Store the new left singular vector in `direction`.
    """
    matrix = weight.flatten(1)
    with torch.no_grad():
        right = F.normalize((matrix * direction[:, None]).sum(0), dim=0)
        left = F.normalize((matrix * right).sum(1), dim=0)
        if update:
            direction.copy_(left)
    return weight / (left * (matrix * right).sum(1)).sum().clamp(min=1e-12)


class SpectralConv2d(nn.Conv2d):
    """A convolution whose filters have the spectral norm 1."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, kernel_size, **options)
        self.direction: Tensor
        self.register_buffer("direction", torch.full((out_channels,), 1 / math.sqrt(out_channels)))

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H, W)."""
        weight = divide_by_spectral_norm(self.weight, self.direction, update=self.training)
        return F.conv2d(maps, weight, self.bias, padding=self.padding)


class SpectralLinear(nn.Linear):
    """A linear layer whose weight has the spectral norm 1."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.direction: Tensor
        self.register_buffer("direction", torch.full((out_features,), 1 / math.sqrt(out_features)))

    def forward(self, features: Tensor) -> Tensor:
        """Map (N, in_features) to (N, out_features)."""
        return F.linear(features, divide_by_spectral_norm(self.weight, self.direction, update=self.training), self.bias)


class ConditionalBatchNorm(nn.Module):
    """Batch norm whose scale and shift depend on the class."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale = nn.Linear(num_classes, channels, bias=False)
        self.shift = nn.Linear(num_classes, channels, bias=False)

    def forward(self, maps: Tensor, classes_NK: Tensor) -> Tensor:
        """Normalise (N, channels, H, W) maps of images with one-hot classes."""
        scale, shift = (layer(classes_NK)[:, :, None, None] for layer in (self.scale, self.shift))
        return torch.addcmul(shift, self.norm(maps), 1 + scale)


class UpBlock(nn.Module):
    """A residual block of a generator that doubles the size of a map.

    Args:
        in_channels, out_channels: Channels of the maps.
        num_classes: Number of classes.
        conv: Class of the convolutions.
    """

    def __init__(self, in_channels: int, out_channels: int, num_classes: int, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        self.norm1 = ConditionalBatchNorm(in_channels, num_classes)
        self.conv1 = conv(in_channels, out_channels, 3, padding=1)
        self.norm2 = ConditionalBatchNorm(out_channels, num_classes)
        self.conv2 = conv(out_channels, out_channels, 3, padding=1)
        self.shortcut = conv(in_channels, out_channels, 1)

    def forward(self, maps: Tensor, classes_NK: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, 2H, 2W)."""
        inner = F.interpolate(F.relu(self.norm1(maps, classes_NK)), scale_factor=2.0)
        inner = self.conv2(F.relu(self.norm2(self.conv1(inner), classes_NK)))
        total: Tensor = inner + F.interpolate(self.shortcut(maps), scale_factor=2.0)
        return total


class DownBlock(nn.Module):
    """A residual block of a discriminator or encoder.

    Args:
        in_channels, out_channels: Channels of the maps.
        conv: Class of the convolutions.
        pools: Halve the size of the map.
        first: The input is an image, so that no activation comes first.
    """

    def __init__(
        self, in_channels: int, out_channels: int, conv: type[nn.Conv2d], *, pools: bool, first: bool = False
    ) -> None:
        super().__init__()
        self.pools, self.first = pools, first
        self.conv1 = conv(in_channels, out_channels, 3, padding=1)
        self.conv2 = conv(out_channels, out_channels, 3, padding=1)
        self.shortcut = conv(in_channels, out_channels, 1) if pools or in_channels != out_channels else None

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, in_channels, H, W) to (N, out_channels, H', W'), with H' = H // 2 if the block pools."""
        inner = self.conv2(F.relu(self.conv1(maps if self.first else F.relu(maps))))
        outer = maps if self.shortcut is None else self.shortcut(maps)
        total: Tensor = inner + outer
        return F.avg_pool2d(total, 2) if self.pools else total
