"""AlexNet, cut to small images."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_size
from condenset.networks.layers import Block

# (kernel, channels, pooling) of each convolution
LAYERS = ((5, 128, "max"), (5, 192, "max"), (3, 256, "none"), (3, 192, "none"), (3, 192, "max"))


class AlexNet(Network):
    """Five convolutions, three of them with 2x2 max pooling, then linear."""

    def __init__(self, *, channels: int, size: int, num_classes: int, norm: str) -> None:
        super().__init__()
        grey = channels == 1  # which gets a border of two more pixels: 28x28 becomes 32x32
        check_size("alexnet", size, 4 if grey else 8)
        blocks: list[Block] = []
        in_channels, extra = channels, 2 if grey else 0
        for kernel, out_channels, pooling in LAYERS:
            block = Block(
                in_channels,
                out_channels,
                size=size,
                kernel=kernel,
                padding=kernel // 2 + extra,
                norm=norm,
                pooling=pooling,
            )
            blocks.append(block)
            in_channels, size, extra = out_channels, block.size, 0
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(in_channels * size**2, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, F): the last map, flattened."""
        maps: Tensor = self.blocks(images)
        return maps.flatten(1)
