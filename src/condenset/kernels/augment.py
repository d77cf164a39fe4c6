"""Augmentation in one launch: a program has one image, from its stored pixels to what the network sees.

The gradient gathers instead of scattering: a source pixel lies in the bilinear reach of at most 4x4 output pixels (the
warps stretch by less than 2), so their sum is taken in one order and the same run gives the same bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import jit, tl, triton


@jit
def _source(theta, x, y, SIZE: tl.constexpr):
    """Where output pixels (x, y) look in the image, in pixels."""
    unit_x = (2 * x + 1).to(tl.float32) / SIZE - 1
    unit_y = (2 * y + 1).to(tl.float32) / SIZE - 1
    at_x = tl.load(theta) * unit_x + tl.load(theta + 1) * unit_y + tl.load(theta + 2)
    at_y = tl.load(theta + 3) * unit_x + tl.load(theta + 4) * unit_y + tl.load(theta + 5)
    return ((at_x + 1) * SIZE - 1) * 0.5, ((at_y + 1) * SIZE - 1) * 0.5


@jit
def _is_shift(theta, SIZE: tl.constexpr):
    """Whether a warp moves (or mirrors) the image by whole pixels, so that an output pixel looks at one other alone."""
    x, y = tl.load(theta + 2) * (SIZE * 0.5), tl.load(theta + 5) * (SIZE * 0.5)
    off = tl.abs(x - tl.floor(x + 0.5)) + tl.abs(y - tl.floor(y + 0.5))
    off += tl.abs(tl.abs(tl.load(theta)) - 1) + tl.abs(tl.abs(tl.load(theta + 4)) - 1)
    off += tl.abs(tl.load(theta + 1)) + tl.abs(tl.load(theta + 3))
    return off < 1e-5


@jit
def _sampled(plane, at_x, at_y, inside, scale, shift, is_shift, SIZE: tl.constexpr):
    """Bilinear values of one normalised plane; zeros beyond its border."""
    total = at_x * 0.0
    if is_shift:
        x, y = tl.floor(at_x + 0.5), tl.floor(at_y + 0.5)
        there = inside & (x >= 0) & (x < SIZE) & (y >= 0) & (y < SIZE)
        value = tl.load(plane + (y * SIZE + x).to(tl.int32), mask=there, other=0).to(tl.float32)
        total = tl.where(there, value * scale + shift, 0.0)
    else:
        total = _bilinear(plane, at_x, at_y, inside, scale, shift, SIZE)
    return total


@jit
def _bilinear(plane, at_x, at_y, inside, scale, shift, SIZE: tl.constexpr):
    left, top = tl.floor(at_x), tl.floor(at_y)
    total = at_x * 0.0
    for place in tl.static_range(4):
        x, y = left + place % 2, top + place // 2
        weight = (1 - tl.abs(at_x - x)) * (1 - tl.abs(at_y - y))
        there = inside & (x >= 0) & (x < SIZE) & (y >= 0) & (y < SIZE)
        value = tl.load(plane + (y * SIZE + x).to(tl.int32), mask=there, other=0).to(tl.float32)
        total += tl.where(there, weight * (value * scale + shift), 0.0)
    return total


@jit
def _recoloured(images, theta, color, scales, shifts, m, is_shift, CHANNELS: tl.constexpr, SIZE: tl.constexpr):
    """The three (or one) planes at pixels m, warped, brightened and saturated."""
    inside = m < SIZE * SIZE
    at_x, at_y = _source(theta, m % SIZE, m // SIZE, SIZE)
    brightness, saturation = tl.load(color), tl.load(color + 1)
    first = _sampled(images, at_x, at_y, inside, tl.load(scales), tl.load(shifts), is_shift, SIZE) + brightness
    second, third = first, first
    if CHANNELS == 3:
        plane: tl.constexpr = SIZE * SIZE
        scale, shift = tl.load(scales + 1), tl.load(shifts + 1)
        second = _sampled(images + plane, at_x, at_y, inside, scale, shift, is_shift, SIZE)
        scale, shift = tl.load(scales + 2), tl.load(shifts + 2)
        third = _sampled(images + 2 * plane, at_x, at_y, inside, scale, shift, is_shift, SIZE)
        second += brightness
        third += brightness
        grey = (first + second + third) / 3
        first = grey + (first - grey) * saturation
        second = grey + (second - grey) * saturation
        third = grey + (third - grey) * saturation
    return first, second, third


@jit
def _forward(
    images,
    index,
    thetas,
    colors,
    keeps,
    scales,
    shifts,
    out,
    num,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One image of a group of `num`: out[n] = augmented images[index[n]]."""
    n = tl.program_id(0)
    group = n // num
    plane: tl.constexpr = SIZE * SIZE
    images += tl.load(index + n).to(tl.int64) * CHANNELS * plane
    out += n.to(tl.int64) * CHANNELS * plane
    theta, color, keep = thetas + group * 6, colors + group * 3, keeps + group * plane
    contrast, is_shift = tl.load(color + 2), _is_shift(theta, SIZE)
    level = 0.0
    if contrast != 1.0:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, plane, BLOCK):
            m = start + tl.arange(0, BLOCK)
            first, second, third = _recoloured(images, theta, color, scales, shifts, m, is_shift, CHANNELS, SIZE)
            both = first + second + third if CHANNELS == 3 else first
            total += tl.where(m < plane, both, 0.0)
        level = tl.sum(total, axis=0) / (CHANNELS * plane)
    for start in range(0, plane, BLOCK):
        m = start + tl.arange(0, BLOCK)
        inside = m < plane
        mask = tl.load(keep + m, mask=inside, other=0.0)
        first, second, third = _recoloured(images, theta, color, scales, shifts, m, is_shift, CHANNELS, SIZE)
        tl.store(out + m, ((level + (first - level) * contrast) * mask).to(out.dtype.element_ty), mask=inside)
        if CHANNELS == 3:
            value = (level + (second - level) * contrast) * mask
            tl.store(out + plane + m, value.to(out.dtype.element_ty), mask=inside)
            value = (level + (third - level) * contrast) * mask
            tl.store(out + 2 * plane + m, value.to(out.dtype.element_ty), mask=inside)


@jit
def _backward(
    grads,
    thetas,
    colors,
    keeps,
    out,
    num,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient of one image from that of its augmented version."""
    n = tl.program_id(0)
    group = n // num
    plane: tl.constexpr = SIZE * SIZE
    grads += n.to(tl.int64) * CHANNELS * plane
    out += n.to(tl.int64) * CHANNELS * plane
    theta, color, keep = thetas + group * 6, colors + group * 3, keeps + group * plane
    saturation, contrast = tl.load(color + 1), tl.load(color + 2)
    level = 0.0
    if contrast != 1.0:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, plane, BLOCK):
            m = start + tl.arange(0, BLOCK)
            mask = tl.load(keep + m, mask=m < plane, other=0.0)
            for channel in tl.static_range(CHANNELS):
                total += tl.load(grads + channel * plane + m, mask=m < plane, other=0.0).to(tl.float32) * mask
        level = (1 - contrast) * tl.sum(total, axis=0) / (CHANNELS * plane)
    # The output pixel that looks at (x, y): the inverse of the warp. A shift has it alone, else it has neighbours.
    a, b, c = tl.load(theta), tl.load(theta + 1), tl.load(theta + 2)
    d, e, f = tl.load(theta + 3), tl.load(theta + 4), tl.load(theta + 5)
    area = a * e - b * d
    is_shift = _is_shift(theta, SIZE)
    half, reach = tl.where(is_shift, 0.5, 0.0), tl.where(is_shift, 1, 4)
    for start in range(0, plane, BLOCK):
        m = start + tl.arange(0, BLOCK)
        inside = m < plane
        x, y = (m % SIZE).to(tl.float32), (m // SIZE).to(tl.float32)
        from_x, from_y = (2 * x + 1) / SIZE - 1 - c, (2 * y + 1) / SIZE - 1 - f
        near_x = tl.floor((((e * from_x - b * from_y) / area + 1) * SIZE - 1) * 0.5 + half)
        near_y = tl.floor((((a * from_y - d * from_x) / area + 1) * SIZE - 1) * 0.5 + half)
        first = tl.zeros((BLOCK,), tl.float32)
        second = tl.zeros((BLOCK,), tl.float32)
        third = tl.zeros((BLOCK,), tl.float32)
        for place in range(0, reach * reach):
            out_x = near_x + tl.where(is_shift, 0, place % 4 - 1)
            out_y = near_y + tl.where(is_shift, 0, place // 4 - 1)
            there = inside & (out_x >= 0) & (out_x < SIZE) & (out_y >= 0) & (out_y < SIZE)
            at_x, at_y = _source(theta, out_x, out_y, SIZE)
            weight = tl.maximum(1 - tl.abs(at_x - x), 0.0) * tl.maximum(1 - tl.abs(at_y - y), 0.0)
            pixel = (out_y * SIZE + out_x).to(tl.int32)
            there = there & (weight > 0)
            mask = tl.load(keep + pixel, mask=there, other=0.0)
            g0 = tl.load(grads + pixel, mask=there, other=0.0).to(tl.float32) * mask * contrast + level
            if CHANNELS == 3:
                g1 = tl.load(grads + plane + pixel, mask=there, other=0.0).to(tl.float32) * mask * contrast + level
                g2 = tl.load(grads + 2 * plane + pixel, mask=there, other=0.0).to(tl.float32) * mask * contrast + level
                grey = (g0 + g1 + g2) / 3
                first += tl.where(there, weight * (grey + (g0 - grey) * saturation), 0.0)
                second += tl.where(there, weight * (grey + (g1 - grey) * saturation), 0.0)
                third += tl.where(there, weight * (grey + (g2 - grey) * saturation), 0.0)
            else:
                first += tl.where(there, weight * g0, 0.0)
        tl.store(out + m, first, mask=inside)
        if CHANNELS == 3:
            tl.store(out + plane + m, second, mask=inside)
            tl.store(out + 2 * plane + m, third, mask=inside)


@jit
def _draw(
    uniforms,
    thetas,
    colors,
    keeps,
    COUNT: tl.constexpr,
    CODE: tl.constexpr,
    SHARED: tl.constexpr,
    REACH: tl.constexpr,
    SIDE: tl.constexpr,
    MAX_SCALE: tl.constexpr,
    MAX_ANGLE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One group's parameters from its 12 uniforms; CODE holds the operations' numbers, three bits each."""
    group = tl.program_id(0)
    u = uniforms + group * 12
    choice = tl.load(uniforms if SHARED else u) * COUNT
    index = tl.minimum(choice.to(tl.int32), COUNT - 1)
    operation = (CODE >> (3 * index)) & 7
    color, crop, cutout = operation == 0, operation == 1, operation == 2
    flip, scale, rotate = operation == 3, operation == 4, operation == 5
    least: tl.constexpr = 1 / MAX_SCALE
    shift_x = tl.where(crop, (tl.floor(tl.load(u + 4) * (2 * REACH + 1)) - REACH) * (2 / SIZE), 0.0)
    shift_y = tl.where(crop, (tl.floor(tl.load(u + 5) * (2 * REACH + 1)) - REACH) * (2 / SIZE), 0.0)
    mirror = tl.where(flip & (tl.load(u + 8) < 0.5), -1.0, 1.0)
    factor_x = tl.where(scale, least + tl.load(u + 9) * (MAX_SCALE - least), 1.0)
    factor_y = tl.where(scale, least + tl.load(u + 10) * (MAX_SCALE - least), 1.0)
    angle = tl.where(rotate, (2 * tl.load(u + 11) - 1) * MAX_ANGLE, 0.0)
    theta = thetas + group * 6
    tl.store(theta, tl.cos(angle) * factor_x * mirror)
    tl.store(theta + 1, -tl.sin(angle))
    tl.store(theta + 2, shift_x)
    tl.store(theta + 3, tl.sin(angle))
    tl.store(theta + 4, tl.cos(angle) * factor_y)
    tl.store(theta + 5, shift_y)
    tl.store(colors + group * 3, tl.where(color, tl.load(u + 1) - 0.5, 0.0))
    tl.store(colors + group * 3 + 1, tl.where(color, 2 * tl.load(u + 2), 1.0))
    tl.store(colors + group * 3 + 2, tl.where(color, tl.load(u + 3) + 0.5, 1.0))
    left = tl.floor(tl.load(u + 6) * (SIZE + 1 - SIDE % 2)) - SIDE // 2
    top = tl.floor(tl.load(u + 7) * (SIZE + 1 - SIDE % 2)) - SIDE // 2
    for start in range(0, SIZE * SIZE, BLOCK):
        m = start + tl.arange(0, BLOCK)
        x, y = m % SIZE, m // SIZE
        erased = cutout & (x >= left) & (x < left + SIDE) & (y >= top) & (y < top + SIDE)
        tl.store(keeps + group * SIZE * SIZE + m, tl.where(erased, 0.0, 1.0), mask=m < SIZE * SIZE)


def draw(
    uniform_GU: Tensor,
    numbers: tuple[int, ...],
    size: int,
    *,
    shared: bool,
    reach: int,
    side: int,
    max_scale: float,
    max_angle: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`condenset.augment.draw`: theta, color and keep of every group; numbers: the strategy's operations, in order."""
    groups, device = len(uniform_GU), uniform_GU.device
    theta = torch.empty(groups, 2, 3, device=device)
    color = torch.empty(groups, 3, device=device)
    keep = torch.empty(groups, size, size, device=device)
    code = sum(number << (3 * place) for place, number in enumerate(numbers))
    _draw[(groups,)](
        uniform_GU.contiguous(), theta, color, keep, COUNT=len(numbers), CODE=code, SHARED=shared, REACH=reach,
        SIDE=side, MAX_SCALE=max_scale, MAX_ANGLE=max_angle, SIZE=size, **_tiles(size),
    )  # fmt: skip
    return theta, color, keep


def _tiles(size: int, most: int = 128, warps: int = 4) -> dict[str, int]:
    return {"BLOCK": min(most, triton.next_power_of_2(size * size)), "num_warps": warps}


def sample(
    images_NCHW: Tensor,
    index_GM: Tensor,
    transform: tuple[Tensor, Tensor, Tensor],
    scale_C: Tensor,
    shift_C: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """(G, M, C, H, W): the images at the indices, times scale plus shift, augmented by their group's transform."""
    groups, num = index_GM.shape
    _, channels, size, _ = images_NCHW.shape
    out = torch.empty(groups, num, channels, size, size, dtype=dtype, device=images_NCHW.device)
    theta, color, keep = (part.contiguous() for part in transform)
    _forward[(groups * num,)](
        images_NCHW, index_GM.contiguous(), theta, color, keep, scale_C, shift_C, out, num,
        CHANNELS=channels, SIZE=size, **_tiles(size),
    )  # fmt: skip
    return out


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, theta: Tensor, color: Tensor, keep: Tensor, dtype: torch.dtype) -> Tensor:
        groups, num, channels = images.shape[:3]
        index = torch.arange(groups * num, device=images.device).view(groups, num)
        one, zero = (torch.full((channels,), value, device=images.device) for value in (1.0, 0.0))
        ctx.save_for_backward(theta.contiguous(), color.contiguous(), keep.contiguous())
        return sample(images.contiguous().flatten(0, 1), index, (theta, color, keep), one, zero, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        groups, num, channels, size, _ = grads.shape
        out = torch.empty(grads.shape, device=grads.device)
        _backward[(groups * num,)](
            grads.contiguous(), *ctx.saved_tensors, out, num, CHANNELS=channels, SIZE=size, **_tiles(size, 256, 8)
        )
        return out, None, None, None, None


def apply(transform: tuple[Tensor, Tensor, Tensor], images_GNCHW: Tensor, dtype: torch.dtype) -> Tensor:
    """`condenset.augment.apply` of float32 images, with its gradient."""
    out: Tensor = _Apply.apply(images_GNCHW, *transform, dtype)
    return out
