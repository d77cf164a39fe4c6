"""VGG-11 with a single linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_min_size, padded_size
from condenset.networks.layers import Block
from condenset.networks.spec import Architecture, Option

# (channels, pooling) per convolution
LAYERS = (
    (64, "max"),
    (128, "max"),
    (256, "none"),
    (256, "max"),
    (512, "none"),
    (512, "max"),
    (512, "none"),
    (512, "max"),
)


class VGG11(Network):
    """Eight 3x3 convolutions, five of them with 2x2 max pooling, then a linear layer."""

    def __init__(self, *, channels: int, size: int, num_classes: int, norm: str) -> None:
        super().__init__()
        check_min_size("vgg11", size, 32)
        blocks: list[Block] = []
        in_channels, padding = channels, 3 if padded_size(size) != size else 1
        for out_channels, pooling in LAYERS:
            block = Block(in_channels, out_channels, size=size, padding=padding, norm=norm, pooling=pooling)
            blocks.append(block)
            in_channels, size, padding = out_channels, block.size, 1
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(in_channels * size**2, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the flattened last map (N, F)."""
        maps: Tensor = self.blocks(images)
        return maps.flatten(1)


ARCHITECTURE = Architecture(
    name="vgg11",
    make=VGG11,
    title="VGG-11",
    description="eight 3x3 convolutions with max pooling",
    options={"norm": Option("instance", ("instance", "batch"))},
    default_init=True,
)
