"""The ConvNet: the default network for learning synthetic images, and the architecture search space."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.errors import check
from condenset.networks.base import Network, check_min_size, padded_size
from condenset.networks.layers import ACTIVATIONS, NORMS, POOLINGS, Block
from condenset.networks.spec import Architecture, Option


def default_depth(size: int) -> int:
    """Return the default number of blocks: 3, but 2 for images below 16x16 and 4 from 64x64."""
    return 2 if size < 16 else 3 if size < 64 else 4


def min_image_size(depth: int, pooling: str) -> int:
    """Return the smallest image size: every pooling layer halves the map, and the last one needs a 2x2 map."""
    # The last norm also needs more than one pixel: instance norm maps a single pixel to zero.
    return 2 if pooling == "none" else 2**depth


class ConvNet(Network):
    """`depth` blocks of 3x3 convolution with `width` channels, norm, activation and 2x2 pooling, then a classifier."""

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
        check_min_size(f"convnet(depth={depth})", size, min_image_size(depth, pooling))
        blocks: list[Block] = []
        for index in range(depth):
            blocks.append(
                Block(
                    width if index else channels,
                    width,
                    size=blocks[-1].size if index else size,
                    padding=3 if index == 0 and padded_size(size) != size else 1,
                    norm=norm,
                    activation=activation,
                    pooling=pooling,
                    is_flattened=index == depth - 1,
                )
            )
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(width * blocks[-1].size ** 2, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the flattened map of the last block (N, F)."""
        maps: Tensor = self.blocks(images)
        return maps.flatten(1)


ARCHITECTURE = Architecture(
    name="convnet",
    make=ConvNet,
    title="ConvNet",
    description="blocks of 3x3 convolution, norm, activation and pooling; "
    "the default depth is 2 below 16x16 images, 4 from 64x64, else 3",
    options={
        "width": Option(128),
        "depth": Option(default_depth, maximum=32),
        "norm": Option("instance", tuple(NORMS)),
        "activation": Option("relu", tuple(ACTIVATIONS)),
        "pooling": Option("average", tuple(POOLINGS)),
    },
    default_init=True,
)
