"""AlexNet for small images."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_min_size
from condenset.networks.layers import Block
from condenset.networks.spec import Architecture, Option

# (kernel size, channels, pooling) per convolution
LAYERS = ((5, 128, "max"), (5, 192, "max"), (3, 256, "none"), (3, 192, "none"), (3, 192, "max"))


class AlexNet(Network):
    """Five convolutions, three of them with 2x2 max pooling, then a linear layer."""

    def __init__(self, *, channels: int, size: int, num_classes: int, norm: str) -> None:
        super().__init__()
        is_gray = channels == 1  # padded by two more pixels: 28x28 becomes 32x32
        check_min_size("alexnet", size, 4 if is_gray else 8)
        blocks: list[Block] = []
        in_channels, extra_padding = channels, 2 if is_gray else 0
        for kernel, out_channels, pooling in LAYERS:
            block = Block(
                in_channels,
                out_channels,
                size=size,
                kernel=kernel,
                padding=kernel // 2 + extra_padding,
                norm=norm,
                pooling=pooling,
            )
            blocks.append(block)
            in_channels, size, extra_padding = out_channels, block.size, 0
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(in_channels * size**2, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the flattened last map (N, F)."""
        maps: Tensor = self.blocks(images)
        return maps.flatten(1)


ARCHITECTURE = Architecture(
    name="alexnet",
    make=AlexNet,
    title="AlexNet",
    description="five convolutions with max pooling, for small images",
    options={"norm": Option("none", ("none", "batch", "instance"))},
    default_init=True,
)
