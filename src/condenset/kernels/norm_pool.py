"""Norm, ReLU and average pooling of a convolution's map; the norm is over each plane (instance) or the whole batch.

Every (image, channel) plane of instance norm is normalised on its own, so a program that holds an image's planes needs
nobody else: a small map is read once. Statistics are float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import affine, jit, levels, tl, triton

EPSILON = tl.constexpr(1e-5)  # of nn.GroupNorm and nn.BatchNorm2d
HELD = 256  # pooled pixels of a plane that a program can hold


@jit
def _corner(maps, m, c, inside, PLACE: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """One of the four values that each of the pooled pixels m averages."""
    pixel = (m // (WIDTH // 2)) * (2 * WIDTH) + (m % (WIDTH // 2)) * 2 + (PLACE // 2) * WIDTH + PLACE % 2
    return tl.load(maps + pixel[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)


@jit
def _square(values, mean, inside):
    distance = tl.where(inside, values - mean[None, :], 0.0)
    return distance * distance


@jit
def _rectified(values, scale, shift):
    return tl.maximum(values * scale[None, :] + shift[None, :], 0.0)


@jit
def _held(
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
    """maps (N, H, W, C) of even sides -> out (N, H/2, W/2, C); a program has BLOCK_C planes of one image, whole."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    m = tl.arange(0, BLOCK_M)
    inside = (m < num // 4)[:, None] & c_in[None, :]
    v0 = _corner(maps, m, c, inside, 0, WIDTH, CHANNELS)
    v1 = _corner(maps, m, c, inside, 1, WIDTH, CHANNELS)
    v2 = _corner(maps, m, c, inside, 2, WIDTH, CHANNELS)
    v3 = _corner(maps, m, c, inside, 3, WIDTH, CHANNELS)
    mean = tl.sum((v0 + v1) + (v2 + v3), axis=0) / num
    square = (_square(v0, mean, inside) + _square(v1, mean, inside)) + (
        _square(v2, mean, inside) + _square(v3, mean, inside)
    )
    rstd = tl.rsqrt(tl.sum(square, axis=0) / num + EPSILON)
    tl.store(means + image * CHANNELS + c, mean, mask=c_in)
    tl.store(rstds + image * CHANNELS + c, rstd, mask=c_in)
    scale = tl.load(gain + c, mask=c_in, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_in, other=0.0).to(tl.float32) - mean * scale
    total = _rectified(v0, scale, shift) + _rectified(v1, scale, shift)
    total += _rectified(v2, scale, shift) + _rectified(v3, scale, shift)
    place = out + image * (num // 4) * CHANNELS + m[:, None] * CHANNELS + c[None, :]
    tl.store(place, (total * 0.25).to(out.dtype.element_ty), mask=inside)


@jit
def _statistics(
    maps,
    means,
    variances,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The mean and variance of every plane."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    # Sums are of distances from the plane's first pixel: no cancellation, whatever the mean.
    pivot = tl.load(maps + c, mask=c_in, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < num)[:, None] & c_in[None, :]
        values = tl.load(maps + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - pivot[None, :], 0.0)
        sums += values
        squares += values * values
    mean = tl.sum(sums, axis=0) / num
    variance = tl.maximum(tl.sum(squares, axis=0) / num - mean * mean, 0.0)
    tl.store(means + image * CHANNELS + c, mean + pivot, mask=c_in)
    tl.store(variances + image * CHANNELS + c, variance, mask=c_in)


@jit
def _apply(
    maps,
    gain,
    bias,
    means,
    rstds,
    out,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """maps (N, H, W, C) -> out (N, H//2, W//2, C), with the norm's statistics known."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    num_out: tl.constexpr = (HEIGHT // 2) * (WIDTH // 2)
    maps += image * HEIGHT * WIDTH * CHANNELS
    out += image * num_out * CHANNELS
    _, _, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
    for first in range(0, num_out, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < num_out)[:, None] & c_in[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for place in tl.static_range(4):
            values = _corner(maps, m, c, inside, place, WIDTH, CHANNELS)
            total += _rectified(values, scale, shift)
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
def _sums(
    maps,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """What the norm's gradient needs of an image: the sum of the slopes, alone and times the normalised values."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    maps += image * HEIGHT * WIDTH * CHANNELS
    grads += image * (HEIGHT // 2) * (WIDTH // 2) * CHANNELS
    mean, rstd, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
    slopes = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tilts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, HEIGHT * WIDTH, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values, _ = _slope(maps, grads, m, c, c_in, scale, shift, HEIGHT, WIDTH, CHANNELS)
        slopes += slope
        tilts += slope * (values - mean[None, :])
    tl.store(sums + image * CHANNELS + c, tl.sum(slopes, axis=0), mask=c_in)
    tl.store(products + image * CHANNELS + c, tl.sum(tilts, axis=0) * rstd, mask=c_in)


@jit
def _grads(
    maps,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    out,
    count,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The map's gradient; `count` values share a mean."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    maps += image * HEIGHT * WIDTH * CHANNELS
    out += image * HEIGHT * WIDTH * CHANNELS
    grads += image * (HEIGHT // 2) * (WIDTH // 2) * CHANNELS
    row = image * PER_IMAGE
    mean, rstd, scale, shift = affine(gain, bias, means, rstds, row, c, c_in, CHANNELS)
    level, tilt = levels(sums, products, row, mean, rstd, c, c_in, count, CHANNELS)
    for first in range(0, HEIGHT * WIDTH, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        slope, values, inside = _slope(maps, grads, m, c, c_in, scale, shift, HEIGHT, WIDTH, CHANNELS)
        grad = scale[None, :] * (slope - level[None, :] - values * tilt[None, :])
        tl.store(out + m[:, None] * CHANNELS + c[None, :], grad.to(out.dtype.element_ty), mask=inside)


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, gain: Tensor, bias: Tensor, batch: bool) -> tuple[Tensor, Tensor, Tensor]:
        num, channels, height, width = maps.shape
        maps = maps.contiguous(memory_format=torch.channels_last)
        means, spread = (torch.empty(num, channels, device=maps.device) for _ in range(2))
        size = (height, width, channels)
        if not batch and height % 2 == width % 2 == 0 and height * width // 4 <= HELD:
            out = maps.new_empty(num, height // 2, width // 2, channels)
            rows = max(16, int(triton.next_power_of_2(height * width // 4)))
            grid, tiles = _tiles(num, channels, rows, 32 if rows >= 64 else 64)
            tiles["num_warps"] = max(1, rows * tiles["BLOCK_C"] // 1024)  # 128 numbers a thread
            _held[grid](maps, gain, bias, out, means, spread, *size, **tiles)
        else:
            grid, tiles = _tiles(num, channels)
            _statistics[grid](maps, means, spread, *size, **tiles)
            if batch:
                between, means = torch.var_mean(means, 0, correction=0, keepdim=True)
                spread = spread.mean(0, keepdim=True) + between
            spread = (spread + EPSILON.value).rsqrt()
            out = _applied(maps, gain, bias, means, spread)
        ctx.save_for_backward(maps, gain, bias, means, spread)
        ctx.batch = batch
        ctx.set_materialize_grads(False)  # of the statistics: nobody wants zeros
        ctx.mark_non_differentiable(means, spread)
        return out.permute(0, 3, 1, 2), means, spread

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        maps, gain, bias, means, rstds = ctx.saved_tensors
        num, channels, height, width = maps.shape
        grads = grads.contiguous(memory_format=torch.channels_last)
        both = torch.empty(2, num, channels, device=maps.device)
        given, size = (maps, gain, bias, means, rstds, grads), (height, width, channels, int(not ctx.batch))
        grid, tiles = _tiles(num, channels)
        _sums[grid](*given, *both, *size, **tiles)
        totals = both.sum(1) if ctx.batch or ctx.needs_input_grad[1] else None
        out = torch.empty_like(maps)
        count = float(height * width * (num if ctx.batch else 1))
        _grads[grid](*given, *(both if totals is None or not ctx.batch else totals), out, count, *size, **tiles)
        bias_grad, gain_grad = (None, None) if totals is None else totals.to(gain.dtype)
        return out, gain_grad, bias_grad, None


def _applied(maps: Tensor, gain: Tensor, bias: Tensor, means: Tensor, rstds: Tensor) -> Tensor:
    """(N, H//2, W//2, C); maps lie channels last."""
    num, channels, height, width = maps.shape
    out = maps.new_empty(num, height // 2, width // 2, channels)
    grid, tiles = _tiles(num, channels)
    _apply[grid](maps, gain, bias, means, rstds, out, height, width, channels, int(len(means) == num), **tiles)
    return out


def _tiles(num: int, channels: int, rows: int = 64, most: int = 64) -> tuple[tuple[int, int], dict[str, int]]:
    """A grid of programs over images and blocks of channels."""
    block = min(most, int(triton.next_power_of_2(channels)))
    return (num, -(-channels // block)), {"BLOCK_M": rows, "BLOCK_C": block, "num_warps": 4}


def norm_relu_pool(maps: Tensor, gain: Tensor, bias: Tensor, *, batch: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Norm over planes (or the batch), ReLU and 2x2 average pooling of (N, C, H, W) maps.

    Gives the pooled map and the norm's means and 1/std, (N or 1, C).
    """
    out: tuple[Tensor, Tensor, Tensor] = _NormReluPool.apply(maps, gain, bias, batch)
    return out


@torch.no_grad()
def norm_relu_pool_known(maps: Tensor, gain: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """The same with the norm's statistics known, (C,) each."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    return _applied(maps, gain, bias, mean[None], rstd[None]).permute(0, 3, 1, 2)
