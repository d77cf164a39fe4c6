"""Sums over the images of a batch in one launch instead of a sum and a cast, always in the same order."""

import torch
from torch import Tensor

from condenset.kernels.runtime import jit, launch, tl, triton

BLOCK_N, BLOCK_C = 128, 16


@jit
def _sum_images(values, out, num, CHANNELS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sum a block of channels of one (num, CHANNELS) matrix."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    matrix = values + tl.program_id(0).to(tl.int64) * num * CHANNELS
    total = tl.zeros((BLOCK_N, BLOCK_C), tl.float32)
    for first in range(0, num, BLOCK_N):
        n = first + tl.arange(0, BLOCK_N)
        inside = (n < num)[:, None] & (c < CHANNELS)[None, :]
        total += tl.load(matrix + n[:, None].to(tl.int64) * CHANNELS + c[None, :], mask=inside, other=0.0)
    sums = tl.sum(total, axis=0).to(out.dtype.element_ty)
    tl.store(out + tl.program_id(0) * CHANNELS + c, sums, mask=c < CHANNELS)


def sum_images(values_MNC: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sums over N of float32 values, (M, C), in the dtype."""
    matrices, num, channels = values_MNC.shape
    out = values_MNC.new_empty(matrices, channels, dtype=dtype)
    grid = (matrices, triton.cdiv(channels, BLOCK_C))
    launch(_sum_images, grid, values_MNC, out, num, CHANNELS=channels, BLOCK_N=BLOCK_N, BLOCK_C=BLOCK_C)
    return out


def sum_norm_gradients(
    sums_and_products_2NC: Tensor, dtype: torch.dtype, *, batch_norm: bool, needed: bool
) -> Tensor | None:
    """Return the gradients of bias and gain, (2, C), if they are needed: batch norm needs them for the maps too.

    Args:
        sums_and_products_2NC: The sums over each plane of the gradients, and of gradient times normalised value.
        dtype: The dtype of bias and gain. For batch norm the result is float32.
        batch_norm: Whether the norm is batch norm.
        needed: Whether bias and gain need gradients.
    """
    if not (batch_norm or needed):
        return None
    return sum_images(sums_and_products_2NC, torch.float32 if batch_norm else dtype)
