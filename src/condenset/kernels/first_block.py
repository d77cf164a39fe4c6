"""The first block of a ConvNet, convolution, instance norm, ReLU and average pooling, in one go.

With 1 or 3 input channels computing the convolution again costs less than storing it, so its map never leaves the chip.
Images are packed first: rows of pixels with 4 channels each (the unused ones zero) and a border of zeros. A pixel's 3x3
surroundings are then three runs of 16 numbers, of which the last 4 meet weights of zero.

The convolution's own bias is not asked for: the norm takes a plane's mean away, and the bias with it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import jit, tl, triton

MAX_WIDTH = 128  # channels that a program can hold
EPSILON = tl.constexpr(1e-5)  # of nn.GroupNorm
RUN = tl.constexpr(16)  # numbers of a packed row that a pixel's surroundings take: 4 pixels of 4 channels


@jit
def _pack(
    images,
    out,
    SIZE: tl.constexpr,
    IN_CHANNELS: tl.constexpr,
    PADDING: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """images (N, c, H, H) -> out (N, ROWS, STRIDE, 4), zero where there is no image."""
    image = tl.program_id(0).to(tl.int64)
    images += image * IN_CHANNELS * SIZE * SIZE
    out += image * ROWS * STRIDE * 4
    for first in range(0, ROWS * STRIDE * 4, BLOCK):
        place = first + tl.arange(0, BLOCK)
        channel, pixel = place % 4, place // 4
        y, x = pixel // STRIDE - PADDING, pixel % STRIDE - PADDING
        there = (channel < IN_CHANNELS) & (y >= 0) & (y < SIZE) & (x >= 0) & (x < SIZE)
        values = tl.load(images + (channel * SIZE + y) * SIZE + x, mask=there, other=0.0)
        tl.store(out + place, values, mask=place < ROWS * STRIDE * 4)


@jit
def _convolved(images, w0, w1, w2, y, x, STRIDE: tl.constexpr):
    """The convolution at pixels (y, x): a product for each row of the filter."""
    start = ((y * STRIDE + x) * 4)[:, None] + tl.arange(0, RUN)[None, :]
    values = tl.dot(tl.load(images + start), w0)
    values = tl.dot(tl.load(images + start + STRIDE * 4), w1, values)
    return tl.dot(tl.load(images + start + STRIDE * 8), w2, values)


@jit
def _filters(weight, c, c_in, CHANNELS: tl.constexpr):
    """The three rows of the packed filters, (RUN, C) each."""
    place = weight + tl.arange(0, RUN)[:, None] * CHANNELS + c[None, :]
    mask = c_in[None, :]
    w0 = tl.load(place, mask=mask, other=0.0)
    w1 = tl.load(place + RUN * CHANNELS, mask=mask, other=0.0)
    w2 = tl.load(place + 2 * RUN * CHANNELS, mask=mask, other=0.0)
    return w0, w1, w2


@jit
def _first_block(
    images,
    weight,
    gain,
    bias,
    out,
    means,
    rstds,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Packed images -> out (N, SIDE//2, SIDE//2, C), where SIDE is that of the convolution's map."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    images += image * ROWS * STRIDE * 4
    w0, w1, w2 = _filters(weight, c, c_in, CHANNELS)
    num: tl.constexpr = SIDE * SIDE
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = m < num
        pixel = tl.where(inside, m, 0)
        values = _convolved(images, w0, w1, w2, pixel // SIDE, pixel % SIDE, STRIDE)
        if num % BLOCK_M != 0:
            values = tl.where(inside[:, None], values, 0.0)
        sums += values
        squares += values * values
    mean = tl.sum(sums, axis=0) / num
    rstd = tl.rsqrt(tl.maximum(tl.sum(squares, axis=0) / num - mean * mean, 0.0) + EPSILON)
    tl.store(means + image * CHANNELS + c, mean, mask=c_in)
    tl.store(rstds + image * CHANNELS + c, rstd, mask=c_in)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    out_side: tl.constexpr = SIDE // 2
    num_out: tl.constexpr = out_side * out_side
    out += image * num_out * CHANNELS
    for first in range(0, num_out, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        pixel = tl.where(m < num_out, m, 0)
        y, x = (pixel // out_side) * 2, (pixel % out_side) * 2
        total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for place in tl.static_range(4):
            values = _convolved(images, w0, w1, w2, y + place // 2, x + place % 2, STRIDE)
            total += tl.maximum(values * scale[None, :] + shift[None, :], 0.0)
        there = (m < num_out)[:, None] & c_in[None, :]
        tl.store(out + m[:, None] * CHANNELS + c[None, :], (total * 0.25).to(out.dtype.element_ty), mask=there)


@jit
def _first_slope(
    images,
    w0,
    w1,
    w2,
    grads,
    m,
    c,
    c_in,
    scale,
    shift,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """At the pixels m: the gradient that reaches the norm's output, and the map's values, computed again."""
    out_side: tl.constexpr = SIDE // 2
    inside = m < SIDE * SIDE
    pixel = tl.where(inside, m, 0)
    y, x = pixel // SIDE, pixel % SIDE
    values = _convolved(images, w0, w1, w2, y, x, STRIDE)
    out_y, out_x = y // 2, x // 2
    pooled = (inside & (out_y < out_side) & (out_x < out_side))[:, None] & c_in[None, :]
    window = out_y * out_side + out_x
    grad = tl.load(grads + window[:, None] * CHANNELS + c[None, :], mask=pooled, other=0.0).to(tl.float32)
    alive = values * scale[None, :] + shift[None, :] > 0
    return tl.where(alive, grad * 0.25, 0.0), values


@jit
def _first_block_sums(
    images,
    weight,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """What the norm's gradient needs of a whole plane: the sum of the slopes, alone and times the normalised values."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    images += image * ROWS * STRIDE * 4
    grads += image * (SIDE // 2) * (SIDE // 2) * CHANNELS
    w0, w1, w2 = _filters(weight, c, c_in, CHANNELS)
    mean = tl.load(means + image * CHANNELS + c, mask=c_in, other=0.0)
    rstd = tl.load(rstds + image * CHANNELS + c, mask=c_in, other=0.0)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    slopes = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tilts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, SIDE * SIDE, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values = _first_slope(images, w0, w1, w2, grads, m, c, c_in, scale, shift, SIDE, CHANNELS, STRIDE)
        slopes += slope
        tilts += slope * values
    total = tl.sum(slopes, axis=0)
    tl.store(sums + image * CHANNELS + c, total, mask=c_in)
    tl.store(products + image * CHANNELS + c, (tl.sum(tilts, axis=0) - mean * total) * rstd, mask=c_in)


@jit
def _first_block_grads(
    images,
    weight,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    out,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of every pixel's surroundings, out (N, SIDE², 3 RUN); `_gather` adds them up."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    num: tl.constexpr = SIDE * SIDE
    images += image * ROWS * STRIDE * 4
    grads += image * (SIDE // 2) * (SIDE // 2) * CHANNELS
    out += image * num * 3 * RUN
    w0, w1, w2 = _filters(weight, c, c_in, CHANNELS)
    mean = tl.load(means + image * CHANNELS + c, mask=c_in, other=0.0)
    rstd = tl.load(rstds + image * CHANNELS + c, mask=c_in, other=0.0)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    # scale * (slope - (total + normal * product) / num), with normal = (value - mean) * rstd
    tilt = tl.load(products + image * CHANNELS + c, mask=c_in, other=0.0) * rstd / num
    level = tl.load(sums + image * CHANNELS + c, mask=c_in, other=0.0) / num - mean * tilt
    j = tl.arange(0, RUN)
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values = _first_slope(images, w0, w1, w2, grads, m, c, c_in, scale, shift, SIDE, CHANNELS, STRIDE)
        grad = (scale[None, :] * (slope - level[None, :] - values * tilt[None, :])).to(w0.dtype)
        place = out + m[:, None] * (3 * RUN) + j[None, :]
        there = (m < num)[:, None]
        tl.store(place, tl.dot(grad, tl.trans(w0)).to(out.dtype.element_ty), mask=there)
        tl.store(place + RUN, tl.dot(grad, tl.trans(w1)).to(out.dtype.element_ty), mask=there)
        tl.store(place + 2 * RUN, tl.dot(grad, tl.trans(w2)).to(out.dtype.element_ty), mask=there)


@jit
def _gather(
    patches,
    out,
    SIZE: tl.constexpr,
    SIDE: tl.constexpr,
    IN_CHANNELS: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The gradient of an image's pixel: the sum of its nine places in the surroundings, always in one order."""
    image = tl.program_id(0).to(tl.int64)
    patches += image * SIDE * SIDE * 3 * RUN
    out += image * IN_CHANNELS * SIZE * SIZE
    channel = tl.arange(0, 4)
    for first in range(0, SIZE * SIZE, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        y, x = m // SIZE + PADDING, m % SIZE + PADDING
        total = tl.zeros((BLOCK_M, 4), tl.float32)
        for place in tl.static_range(9):
            map_y, map_x = y - place // 3, x - place % 3
            there = (m < SIZE * SIZE) & (map_y >= 0) & (map_y < SIDE) & (map_x >= 0) & (map_x < SIDE)
            start = (map_y * SIDE + map_x) * (3 * RUN) + (place // 3) * RUN + (place % 3) * 4
            values = tl.load(patches + start[:, None] + channel[None, :], mask=there[:, None], other=0.0)
            total += values.to(tl.float32)
        there = (m < SIZE * SIZE)[:, None] & (channel < IN_CHANNELS)[None, :]
        tl.store(out + channel[None, :] * (SIZE * SIZE) + m[:, None], total.to(out.dtype.element_ty), mask=there)


class _FirstBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int) -> Tensor:
        num, in_channels, size, _ = images.shape
        channels, side = len(weight), size + 2 * padding - 2
        rows, stride = size + 2 * padding, size + 2 * padding + 2
        packed = images.new_empty(num, rows, stride, 4)
        _pack[(num,)](
            images.contiguous(), packed, SIZE=size, IN_CHANNELS=in_channels, PADDING=padding, ROWS=rows, STRIDE=stride,
            BLOCK=2048,
        )  # fmt: skip
        filters = F.pad(weight.permute(2, 3, 1, 0), (0, 0, 0, 4 - in_channels, 0, 1)).contiguous()  # (3, 4, 4, C)
        out = images.new_empty(num, side // 2, side // 2, channels)
        means, rstds = (torch.empty(num, channels, device=images.device) for _ in range(2))
        ctx.sizes = {"SIDE": side, "CHANNELS": channels, "ROWS": rows, "STRIDE": stride}
        ctx.image = (size, in_channels, padding)
        grid, tiles = _first_tiles(num, channels)
        _first_block[grid](packed, filters, gain, bias, out, means, rstds, **ctx.sizes, **tiles)
        ctx.save_for_backward(packed, filters, gain, bias, means, rstds)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        packed, filters, gain, bias, means, rstds = ctx.saved_tensors
        size, in_channels, padding = ctx.image
        num, side = len(packed), ctx.sizes["SIDE"]
        grid, tiles = _first_tiles(num, ctx.sizes["CHANNELS"])
        grads = grads.contiguous(memory_format=torch.channels_last)
        sums, products = torch.empty_like(means), torch.empty_like(means)
        given = (packed, filters, gain, bias, means, rstds, grads, sums, products)
        _first_block_sums[grid](*given, **ctx.sizes, **tiles)
        patches = packed.new_empty(num, side * side, 48)
        whole = {
            **tiles,
            "num_stages": 2,
            "BLOCK_C": max(16, triton.next_power_of_2(ctx.sizes["CHANNELS"])),
        }  # it sums over channels
        _first_block_grads[(num,)](*given, patches, **ctx.sizes, **whole)
        out = packed.new_empty(num, in_channels, size, size)
        _gather[(num,)](patches, out, SIZE=size, SIDE=side, IN_CHANNELS=in_channels, PADDING=padding, BLOCK_M=128)
        return out, None, None, None, None


def _first_tiles(num: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    block = min(64, max(16, triton.next_power_of_2(channels)))
    return (num, -(-channels // block)), {"BLOCK_M": 64, "BLOCK_C": block, "num_warps": 4, "num_stages": 3}


def first_block(images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Norm, ReLU and pooling of a 3x3 convolution of square images with 1 or 3 channels; only they get a gradient."""
    out: Tensor = _FirstBlock.apply(images, weight, gain, bias, padding)
    return out
