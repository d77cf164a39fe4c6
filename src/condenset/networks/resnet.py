"""ResNet-18 for small images, and a variant with average pooling, whose gradients suit the learning of images."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from condenset.networks.base import Network, check_min_size
from condenset.networks.layers import NORMS, AveragePool
from condenset.networks.spec import Architecture, Option

# (channels, stride) per basic block
BLOCKS = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
MIN_SIZE = 16  # after three halvings, 4 pixels remain; instance norm maps a single pixel to zero


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; with `average_pooling`, pooling replaces the stride of a convolution."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, norm: str, average_pooling: bool) -> None:
        super().__init__()
        make_norm = functools.partial(NORMS[norm], channels, 0)  # only layer norm needs the size of the map
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
        """Map (N, in_channels, H, W) to (N, channels, H / stride, W / stride)."""
        inner = self.pool(torch.relu(self.norm1(self.conv1(maps))))
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(maps))


class ResNet18(Network):
    """A 3x3 stem, eight basic blocks, global average pooling and a linear layer.

    With `average_pooling`, the last map is flattened instead of averaged.
    """

    def __init__(self, *, channels: int, size: int, num_classes: int, norm: str, average_pooling: bool = False) -> None:
        super().__init__()
        name = "resnet18_ap" if average_pooling else "resnet18"
        check_min_size(f"{name}(norm={norm!r})", size, MIN_SIZE)
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
        """Map images (N, C, H, W) to the averaged or flattened last map (N, F)."""
        maps: Tensor = self.pool(self.blocks(torch.relu(self.norm(self.stem(images)))))
        return maps.flatten(1)


RESNET18 = Architecture(
    name="resnet18",
    make=ResNet18,
    title="ResNet-18",
    description="a 3x3 stem, eight residual blocks and global average pooling",
    options={"norm": Option("instance", ("instance", "batch"))},
    default_init=True,
)
RESNET18_AP = Architecture(
    name="resnet18_ap",
    make=functools.partial(ResNet18, average_pooling=True),
    title="ResNet-18AP",
    description="ResNet-18 with average pooling instead of strides and a flattened last map, for learning images",
    options={"norm": Option("instance", ("instance", "batch"))},
    default_init=True,
)
