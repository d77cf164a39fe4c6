"""CutMix: paste a box of another image into every image of a batch, and mix the labels (Yun et al., ICCV 2019).

Shapes: N images.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.engine import rng

STREAM = 1 << 30  # of the random numbers; the streams of the augmentation are the positions in a batch


class CutMixBox(NamedTuple):
    """The box of a batch. Every image gets the box of the image before it; the order of the batch is random."""

    inside_HW: Tensor  # whether a pixel is in the box
    share: Tensor  # of the pixels outside of the box, ()

    def mix(self, images_NCHW: Tensor) -> Tensor:
        """Return the images with the box of their neighbours."""
        return torch.where(self.inside_HW, images_NCHW.roll(1, 0), images_NCHW)

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy for the labels of both images, weighted by their pixels."""
        other = F.cross_entropy(logits, labels.roll(1, 0))
        return self.share * F.cross_entropy(logits, labels) + (1 - self.share) * other


def sample_box(key: Tensor, clock: Tensor, size: int, probability: float) -> CutMixBox:
    """Sample the box of a step; with 1 - `probability` it is empty.

    Its area is uniform between 0 and that of the image, before the part outside of the image is cut off.
    """
    stream = torch.full((1,), STREAM, dtype=torch.int64, device=key.device)
    use, area, x, y = rng.uniform(key, clock, stream, 4)[0].unbind()
    side = torch.where(use < probability, (area.sqrt() * size).floor(), 0)
    half, pixel = (side / 2).floor(), torch.arange(size, device=key.device)
    inside_x, inside_y = (_in_range(pixel, (center * size).floor(), half) for center in (x, y))
    inside_HW = inside_y[:, None] & inside_x[None]
    return CutMixBox(inside_HW, 1 - inside_HW.float().mean())


def _in_range(pixel: Tensor, center: Tensor, half: Tensor) -> Tensor:
    return (pixel >= center - half) & (pixel < center + half)
