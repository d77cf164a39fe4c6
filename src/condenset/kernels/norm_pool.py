"""Instance norm, ReLU and average pooling of a convolution's map in one go.

Every (image, channel) plane is normalised on its own, so a program that holds an image's planes needs nobody else.
Statistics are float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import jit, tl, triton

EPSILON = tl.constexpr(1e-5)  # of nn.GroupNorm


@jit
def _norm_relu_pool(
    maps,
    gain,
    bias,
    out,
    means,
    rstds,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """maps (N, H, W, C) -> out (N, H//2, W//2, C); a program has one image and BLOCK_C of its channels."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    maps += image * HEIGHT * WIDTH * CHANNELS
    # Sums are of distances from the plane's first pixel: no cancellation, whatever the mean.
    pivot = tl.load(maps + c, mask=c_in, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, HEIGHT * WIDTH, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < HEIGHT * WIDTH)[:, None] & c_in[None, :]
        values = tl.load(maps + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - pivot[None, :], 0.0)
        sums += values
        squares += values * values
    mean = tl.sum(sums, axis=0) / (HEIGHT * WIDTH)
    rstd = tl.rsqrt(tl.maximum(tl.sum(squares, axis=0) / (HEIGHT * WIDTH) - mean * mean, 0.0) + EPSILON)
    mean += pivot
    tl.store(means + image * CHANNELS + c, mean, mask=c_in)
    tl.store(rstds + image * CHANNELS + c, rstd, mask=c_in)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    out_width: tl.constexpr = WIDTH // 2
    num_out: tl.constexpr = (HEIGHT // 2) * out_width
    out += image * num_out * CHANNELS
    for first in range(0, num_out, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < num_out)[:, None] & c_in[None, :]
        corner = (m // out_width) * 2 * WIDTH + (m % out_width) * 2
        total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for place in tl.static_range(4):
            pixel = corner + (place // 2) * WIDTH + place % 2
            values = tl.load(maps + pixel[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
            total += tl.maximum(values * scale[None, :] + shift[None, :], 0.0)
        tl.store(out + m[:, None] * CHANNELS + c[None, :], (total * 0.25).to(out.dtype.element_ty), mask=inside)


@jit
def _slope(maps, grads, m, c, c_in, scale, shift, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """At the pixels m: the gradient that reaches the norm's output through ReLU and pooling, and the map's values."""
    y, x = m // WIDTH, m % WIDTH
    out_y, out_x = y // 2, x // 2
    out_width: tl.constexpr = WIDTH // 2
    inside = (m < HEIGHT * WIDTH)[:, None] & c_in[None, :]
    pooled = inside & ((out_y < HEIGHT // 2) & (out_x < out_width))[:, None]  # an odd side's last row is in no window
    values = tl.load(maps + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
    window = out_y * out_width + out_x
    grad = tl.load(grads + window[:, None] * CHANNELS + c[None, :], mask=pooled, other=0.0).to(tl.float32)
    alive = values * scale[None, :] + shift[None, :] > 0
    return tl.where(alive, grad * 0.25, 0.0), values, inside


@jit
def _norm_relu_pool_backward(
    maps,
    gain,
    bias,
    means,
    rstds,
    grads,
    out,
    sums,
    products,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of maps, and for each image and channel what the gradients of bias (sums) and gain sum over."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    out += image * num * CHANNELS
    grads += image * (HEIGHT // 2) * (WIDTH // 2) * CHANNELS
    mean = tl.load(means + image * CHANNELS + c, mask=c_in, other=0.0)
    rstd = tl.load(rstds + image * CHANNELS + c, mask=c_in, other=0.0)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    slopes = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tilts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values, _ = _slope(maps, grads, m, c, c_in, scale, shift, HEIGHT, WIDTH, CHANNELS)
        slopes += slope
        tilts += slope * (values - mean[None, :])
    total = tl.sum(slopes, axis=0)
    product = tl.sum(tilts, axis=0) * rstd
    tl.store(sums + image * CHANNELS + c, total, mask=c_in)
    tl.store(products + image * CHANNELS + c, product, mask=c_in)
    # scale * (slope - (total + normal * product) / num), with normal = (value - mean) * rstd
    tilt = product * rstd / num
    level = total / num - mean * tilt
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values, inside = _slope(maps, grads, m, c, c_in, scale, shift, HEIGHT, WIDTH, CHANNELS)
        grad = scale[None, :] * (slope - level[None, :] - values * tilt[None, :])
        tl.store(out + m[:, None] * CHANNELS + c[None, :], grad.to(out.dtype.element_ty), mask=inside)


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        num, channels, height, width = maps.shape
        maps = maps.contiguous(memory_format=torch.channels_last)
        out = maps.new_empty(num, height // 2, width // 2, channels)
        means, rstds = (torch.empty(num, channels, device=maps.device) for _ in range(2))
        grid, blocks = _tiles(num, channels)
        _norm_relu_pool[grid](maps, gain, bias, out, means, rstds, height, width, channels, **blocks)
        ctx.save_for_backward(maps, gain, bias, means, rstds)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        maps, gain, bias, means, rstds = ctx.saved_tensors
        num, channels, height, width = maps.shape
        grads = grads.contiguous(memory_format=torch.channels_last)
        out, sums, products = torch.empty_like(maps), torch.empty_like(means), torch.empty_like(means)
        grid, blocks = _tiles(num, channels)
        _norm_relu_pool_backward[grid](
            maps, gain, bias, means, rstds, grads, out, sums, products, height, width, channels, **blocks
        )
        if not ctx.needs_input_grad[1]:
            return out, None, None
        return out, products.sum(0).to(gain.dtype), sums.sum(0).to(bias.dtype)


def _tiles(num: int, channels: int) -> tuple[tuple[int, int], dict[str, int]]:
    """A grid of programs over images and blocks of channels."""
    block = min(64, triton.next_power_of_2(channels))
    return (num, -(-channels // block)), {"BLOCK_M": 64, "BLOCK_C": block, "num_warps": 4}


def norm_relu_pool(maps: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Instance norm, ReLU and 2x2 average pooling of (N, C, H, W) maps."""
    out: Tensor = _NormReluPool.apply(maps, gain, bias)
    return out
