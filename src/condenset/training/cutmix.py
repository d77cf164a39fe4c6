"""CutMix: paste a box of another image into every image of a batch, and mix the labels (Yun et al., ICCV 2019).

Shapes: N images.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from condenset import kernels
from condenset.kernels import cutmix as cutmix_kernel

STREAM = 1 << 30  # of the random numbers; the streams of the augmentation are the positions in a batch
NUM_UNIFORMS = 4


class CutMixBox(NamedTuple):
    """The box of a batch. Every image gets the box of the image before it; the order of the batch is random."""

    inside_HW: Tensor  # whether a pixel is in the box
    share: Tensor  # of the pixels outside of the box, ()

    def mix(self, images_NCHW: Tensor) -> Tensor:
        """Return the images with the box of their neighbours."""
        return torch.where(self.inside_HW, images_NCHW.roll(1, 0), images_NCHW)


def mix_images(images_NCHW: Tensor, uniform_4: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """Return the images with the box that four uniform numbers select, and the share of the pixels outside of it, ().

    With 1 - `probability` the box is empty.
    """
    if kernels.available(images_NCHW):
        return cutmix_kernel.mix(images_NCHW, uniform_4, probability)
    box = make_box(uniform_4, images_NCHW.shape[-1], probability)
    return box.mix(images_NCHW), box.share


def make_box(uniform_4: Tensor, size: int, probability: float) -> CutMixBox:
    """Return the box that four uniform numbers select.

    Its area is uniform between 0 and that of the image, before the part outside of the image is cut off.
    """
    use, area, x, y = uniform_4.unbind()
    side = torch.where(use < probability, (area.sqrt() * size).floor(), 0)
    half, pixel = (side / 2).floor(), torch.arange(size, device=uniform_4.device)
    inside_x, inside_y = (_in_range(pixel, (center * size).floor(), half) for center in (x, y))
    inside_HW = inside_y[:, None] & inside_x[None]
    return CutMixBox(inside_HW, 1 - inside_HW.float().mean())


def _in_range(pixel: Tensor, center: Tensor, half: Tensor) -> Tensor:
    return (pixel >= center - half) & (pixel < center + half)
