"""Features of every block of a network, in addition to its embedding.

Shapes: N images, C channels, H and W of a map, F features.
"""

from __future__ import annotations

from torch import Tensor, nn

FEATURES = ("last", "blocks", "attention")
ATTENTION_POWER = 4
ATTENTION_WEIGHT = 100.0  # of a squared distance of attention, relative to that of the embedding


def list_features(kind: str, maps: list[Tensor], embedding_NF: Tensor) -> list[Tensor]:
    """Return (N, F) features of images: a tensor for every block.

    Args:
        kind: "blocks": the maps of every block. "attention": the embedding, and where the maps of the earlier blocks
            are large (Sajedi et al., ICCV 2023). "unpooled": the maps of every block before its pooling, and the
            embedding.
        maps: (N, C, H, W) output of every block, or of its activation; the last one gives the embedding.
        embedding_NF: The embedding.
    """
    blocks = maps if kind == "unpooled" else maps[:-1]
    features = [_attention(block_maps) if kind == "attention" else block_maps.flatten(1) for block_maps in blocks]
    return [*features, embedding_NF]


def _attention(maps_NCHW: Tensor) -> Tensor:
    """Return (N, H * W) attention: the sum of |value|^4 over the channels, with the same norm for every image."""
    sums = maps_NCHW.float().abs().pow(ATTENTION_POWER).sum(1).flatten(1)
    attention: Tensor = ATTENTION_WEIGHT**0.5 * nn.functional.normalize(sums, dim=1)
    return attention.to(maps_NCHW.dtype)
