"""CutMix in one launch instead of thirty: the box, the mixed images and the share of the pixels outside of the box."""

import torch
from torch import Tensor

from condenset.kernels.runtime import jit, launch, tl

BLOCK_SIZE = 1024


@jit
def _mix(
    images,
    uniform,
    out,
    share,
    probability,
    num,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one image, with the box of the image before it."""
    n = tl.program_id(0)
    side = tl.where(tl.load(uniform) < probability, tl.floor(tl.sqrt_rn(tl.load(uniform + 1)) * SIZE), 0.0)
    half = tl.floor(side / 2)
    center_x, center_y = tl.floor(tl.load(uniform + 2) * SIZE), tl.floor(tl.load(uniform + 3) * SIZE)
    left, right = tl.maximum(center_x - half, 0.0), tl.minimum(center_x + half, SIZE)
    top, bottom = tl.maximum(center_y - half, 0.0), tl.minimum(center_y + half, SIZE)
    values: tl.constexpr = CHANNELS * SIZE * SIZE
    own, other = n.to(tl.int64) * values, ((n + num - 1) % num).to(tl.int64) * values
    for start in range(0, values, BLOCK):
        m = start + tl.arange(0, BLOCK)
        x, y = m % SIZE, m // SIZE % SIZE
        in_box = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        source = tl.where(in_box, other, own) + m
        tl.store(out + own + m, tl.load(images + source, mask=m < values), mask=m < values)
    if n == 0:
        tl.store(share, 1 - (right - left) * (bottom - top) / (SIZE * SIZE))


def mix(images_NCHW: Tensor, uniform_4: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """Return the mixed images and the share, as `CutMixBox` computes them."""
    num, channels, size, _ = images_NCHW.shape
    images = images_NCHW.contiguous()
    out, share = torch.empty_like(images), torch.empty((), device=images.device)
    launch(
        _mix, (num,), images, uniform_4, out, share, probability, num, CHANNELS=channels, SIZE=size, BLOCK=BLOCK_SIZE
    )
    return out, share
