"""The paper's space of networks for architecture search: 720 ConvNets."""

from __future__ import annotations

import itertools

from condenset.errors import whole
from condenset.networks.base import padded
from condenset.networks.convnet import smallest_image

WIDTHS = (32, 64, 128, 256)
DEPTHS = (1, 2, 3, 4)
NORMS = ("none", "batch", "layer", "instance", "group")
ACTIVATIONS = ("sigmoid", "relu", "leaky_relu")
POOLINGS = ("none", "max", "average")


def search_space(size: int = 32) -> list[str]:
    """The specs of the space, always in this order, without those whose pooling leaves nothing of smaller images.

    A ConvNet that pools `depth` times needs images of 2**depth x 2**depth: from 16x16 on all 720 are there.
    """
    size = whole("size", size, 1)
    return [
        f"convnet(width={width}, depth={depth}, norm={norm!r}, activation={activation!r}, pooling={pooling!r})"
        for width, depth, norm, activation, pooling in itertools.product(WIDTHS, DEPTHS, NORMS, ACTIVATIONS, POOLINGS)
        if padded(size) >= smallest_image(depth, pooling)
    ]
