"""The search space of the paper's architecture search: 720 ConvNets."""

from __future__ import annotations

import itertools

from condenset.errors import check_int
from condenset.networks.base import padded_size
from condenset.networks.convnet import min_image_size

SEARCH_WIDTHS = (32, 64, 128, 256)
SEARCH_DEPTHS = (1, 2, 3, 4)
SEARCH_NORMS = ("none", "batch", "layer", "instance", "group")
SEARCH_ACTIVATIONS = ("sigmoid", "relu", "leaky_relu")
SEARCH_POOLINGS = ("none", "max", "average")


def search_space(size: int = 32) -> list[str]:
    """Return the specs of the paper's search space of ConvNets, in a fixed order.

    A ConvNet that pools `depth` times needs images of at least 2**depth pixels per side, so small images get fewer
    specs. From 16x16, all 720 are returned.

    Args:
        size: The image size in pixels.

    Returns:
        Spec strings, such as "convnet(width=32, depth=1, norm='none', activation='sigmoid', pooling='none')". Pass
        them to `cs.rank`.

    Raises:
        UserError: The size is not a whole number above 0.

    Example:
        >>> import condenset as cs
        >>> len(cs.search_space()), len(cs.search_space(size=8))
        (720, 600)
    """
    size = check_int("size", size, 1)
    options = itertools.product(SEARCH_WIDTHS, SEARCH_DEPTHS, SEARCH_NORMS, SEARCH_ACTIVATIONS, SEARCH_POOLINGS)
    return [
        f"convnet(width={width}, depth={depth}, norm={norm!r}, activation={activation!r}, pooling={pooling!r})"
        for width, depth, norm, activation, pooling in options
        if padded_size(size) >= min_image_size(depth, pooling)
    ]
