"""The ConvNet: the network that synthetic images are learned with, and the space that architecture search looks in."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.errors import check
from condenset.networks.base import Network, check_size, padded
from condenset.networks.layers import Block


def default_depth(size: int) -> int:
    """3 blocks; 2 for images below 16x16, 4 from 64x64 on."""
    return 2 if size < 16 else 3 if size < 64 else 4


def smallest_image(depth: int, pooling: str) -> int:
    """The side that images must have: every pooling halves a map, and the last still needs a 2x2 square."""
    # Without pooling too the last norm needs more than one pixel: normalised alone, a pixel is zero whatever the image.
    return 2 if pooling == "none" else 2**depth


class ConvNet(Network):
    """`depth` blocks of 3x3 convolution to `width` channels, norm, activation and 2x2 pooling, then linear."""

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        num_classes: int,
        width: int,
        depth: int,
        norm: str,
        activation: str,
        pooling: str,
    ) -> None:
        super().__init__()
        check(norm != "group" or width % 4 == 0, "width must be a multiple of 4 with norm='group'", width)
        check_size(f"convnet(depth={depth})", size, smallest_image(depth, pooling))
        blocks: list[Block] = []
        for index in range(depth):
            blocks.append(
                Block(
                    width if index else channels,
                    width,
                    size=blocks[-1].size if index else size,
                    padding=3 if index == 0 and padded(size) != size else 1,
                    norm=norm,
                    activation=activation,
                    pooling=pooling,
                )
            )
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(width * blocks[-1].size ** 2, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, F): the last block's map, flattened."""
        maps: Tensor = self.blocks(images)
        return maps.flatten(1)
