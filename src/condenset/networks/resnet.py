"""ResNet-18 for small images, and its variant with average pooling, which suits learning images."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from condenset.networks.base import Network, check_size
from condenset.networks.layers import NORMS, AveragePool

# (channels, stride) of each basic block
BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
# Three halvings must leave four pixels: alone, one is normalised to zero whatever the image.
SMALLEST = 16


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a stride is a stride, or average pooling after a plain convolution."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, norm: str, average_pooling: bool) -> None:
        super().__init__()
        make_norm = functools.partial(NORMS[norm], channels, 0)  # a map's side matters to layer norm alone
        shrink = average_pooling and stride == 2
        conv_stride = 1 if shrink else stride
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=conv_stride, padding=1, bias=False)
        self.norm1 = make_norm()
        self.pool = AveragePool(2) if shrink else nn.Identity()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = make_norm()
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != channels:
            conv = nn.Conv2d(in_channels, channels, 1, stride=conv_stride, bias=False)
            self.shortcut = nn.Sequential(conv, *([AveragePool(2)] if shrink else []), make_norm())

    def forward(self, maps: Tensor) -> Tensor:
        """(N, in_channels, H, W) -> (N, channels, H / stride, W / stride)."""
        inner = self.pool(torch.relu(self.norm1(self.conv1(maps))))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps))


class ResNet18(Network):
    """A 3x3 stem, eight basic blocks and the global average, then linear; with average_pooling the map flattened."""

    def __init__(self, *, channels: int, size: int, num_classes: int, norm: str, average_pooling: bool = False) -> None:
        super().__init__()
        name = "resnet18_ap" if average_pooling else "resnet18"
        check_size(f"{name}(norm={norm!r})", size, SMALLEST)
        in_channels = 64
        self.stem = nn.Conv2d(channels, in_channels, 3, padding=1, bias=False)
        self.norm = NORMS[norm](in_channels, size)
        blocks: list[nn.Module] = []
        for out_channels, stride in BLOCKS:
            blocks.append(
                BasicBlock(in_channels, out_channels, stride=stride, norm=norm, average_pooling=average_pooling)
            )
            in_channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.pool: nn.Module = nn.Identity() if average_pooling else nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(in_channels * ((size // 8) ** 2 if average_pooling else 1), num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, F): the last map's average, or the map itself flattened."""
        maps: Tensor = self.pool(self.blocks(torch.relu(self.norm(self.stem(images)))))
        return maps.flatten(1)
