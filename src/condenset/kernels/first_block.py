"""The first block of a ConvNet in one go: convolution, norm, ReLU and average pooling, with gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels import regions as kernels
from condenset.kernels.runtime import num_programs, triton

MAX_WIDTH = 128  # channels that a program can hold


class _FirstBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, batch: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        num, in_channels, size, _ = images.shape
        packed, filters = _packed(images, padding), _spread_filters(weight if weight.ndim == 4 else weight[0])
        side = (size + 2 * padding - 2) // 2
        means, rstds = _found_statistics(packed, filters, side, batch)
        out = _applied(packed, filters, gain, bias, means, rstds)
        ctx.save_for_backward(packed, filters, gain, bias, means, rstds)
        ctx.image, ctx.batch = (size, in_channels, padding), batch
        ctx.classes = None if weight.ndim == 4 else len(weight)
        ctx.count = float((num if batch else 1) * 4 * side * side)
        ctx.set_materialize_grads(False)  # of the statistics: nobody wants zeros
        ctx.mark_non_differentiable(means, rstds)
        return out, means, rstds

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        packed, filters, gain, bias, means, rstds = ctx.saved_tensors
        num, channels = len(packed), filters.shape[-1]
        grads = grads.contiguous(memory_format=torch.channels_last)
        both = torch.empty(2, num, channels, device=grads.device)
        sizes = {"OUT": grads.shape[-1], "CHANNELS": channels, "PER_IMAGE": int(not ctx.batch)}
        given: tuple[Tensor, ...] = (packed, filters, gain, bias, means, rstds, grads)
        block = min(64, _width(channels))
        kernels.sums[(num, triton.cdiv(channels, block))](
            *given, *both, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1
        )
        totals = both.sum(1) if ctx.batch or ctx.needs_input_grad[2] else None
        given = (*given, *(both if totals is None or not ctx.batch else totals))
        image_grad = filter_grad = None
        if ctx.needs_input_grad[0]:
            image_grad = _image_gradient(given, sizes, ctx.count, *ctx.image)
        if ctx.needs_input_grad[1]:
            filter_grad = _filter_gradient(given, sizes, ctx.count, ctx.image[1], ctx.classes or 1)
            filter_grad = filter_grad[0] if ctx.classes is None else filter_grad
        bias_grad, gain_grad = (None, None) if totals is None else totals.to(gain.dtype)
        return image_grad, filter_grad, gain_grad, bias_grad, None, None


def _packed(images: Tensor, padding: int) -> Tensor:
    num, channels, size, _ = images.shape
    packed = images.new_empty(num, size + 2 * padding, size + 2 * padding, 4)
    kernels.pack[(num,)](images.contiguous(), packed, SIZE=size, CHANNELS=channels, PADDING=padding, BLOCK=2048)
    return packed


def _spread_filters(weight: Tensor) -> Tensor:
    channels, in_channels = weight.shape[:2]
    filters = weight.new_empty(4, 64, channels)
    kernels.spread[(4,)](
        weight.contiguous(), filters, IN_CHANNELS=in_channels, CHANNELS=channels, BLOCK_C=_width(channels)
    )
    return filters


def _found_statistics(packed: Tensor, filters: Tensor, side: int, batch: bool) -> tuple[Tensor, Tensor]:
    """The means and 1/std, (N, C), or (1, C) over the batch."""
    num, channels = len(packed), filters.shape[-1]
    grams = torch.empty(num, 64, 64, device=packed.device)
    kernels.gram[(num,)](packed, grams, OUT=side, BLOCK_M=64, num_warps=4, num_stages=2)
    count = float(side * side)
    if batch:
        grams, count = grams.sum(0, keepdim=True), num * count
    rows = len(grams)
    means, rstds = (torch.empty(rows, channels, device=packed.device) for _ in range(2))
    kernels.statistics[(num_programs(rows, packed.device, 2),)](
        grams,
        filters,
        means,
        rstds,
        rows,
        count,
        CHANNELS=channels,
        BLOCK_C=_width(channels),
        num_warps=4,
        num_stages=2,
    )
    return means, rstds


def _applied(packed: Tensor, filters: Tensor, gain: Tensor, bias: Tensor, means: Tensor, rstds: Tensor) -> Tensor:
    num, side, channels = len(packed), packed.shape[1] // 2 - 1, filters.shape[-1]
    out = packed.new_empty(num, side, side, channels)
    block = min(64, _width(channels))
    blocks = triton.cdiv(channels, block)
    kernels.apply[(num_programs(num, packed.device, 4 // blocks), blocks)](
        packed, filters, gain, bias, means, rstds, out, num, OUT=side, CHANNELS=channels,
        PER_IMAGE=int(len(means) == num), BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def _image_gradient(
    given: tuple[Tensor, ...], sizes: dict[str, int], count: float, size: int, channels: int, padding: int
) -> Tensor:
    packed, num = given[0], len(given[0])
    block = min(64, _width(sizes["CHANNELS"]))
    blocks = triton.cdiv(sizes["CHANNELS"], block)
    found = packed.new_empty(num, blocks, sizes["OUT"] ** 2, 64)
    kernels.image_grads[(num, blocks)](
        *given, found, count, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1
    )
    out = packed.new_empty(num, channels, size, size)
    kernels.gather[(num,)](found, out, BLOCKS=blocks, SIZE=size, CHANNELS=channels, PADDING=padding, BLOCK_M=256)
    return out


def _filter_gradient(
    given: tuple[Tensor, ...], sizes: dict[str, int], count: float, in_channels: int, classes: int
) -> Tensor:
    """(classes, C, c, 3, 3) from the images of each, as many of one class as of another."""
    packed, num, channels = given[0], len(given[0]) // classes, sizes["CHANNELS"]
    block = min(64, _width(channels))
    programs = min(num, max(1, num_programs(len(packed), packed.device, 1) // classes))
    parts = torch.empty(classes, programs, 4, 64, channels, device=packed.device)
    kernels.filter_grads[(classes * programs, 4, triton.cdiv(channels, block))](
        *given, parts, count, num, programs, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1
    )
    places = parts.sum(1).view(classes, 2, 2, 4, 4, 4, channels)
    found = sum(places[:, y, x, y : y + 3, x : x + 3, :in_channels] for y in (0, 1) for x in (0, 1))
    assert isinstance(found, Tensor)
    return found.permute(0, 4, 3, 1, 2).to(packed.dtype)


def _width(channels: int) -> int:
    return max(16, int(triton.next_power_of_2(channels)))


def first_block(
    images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, *, batch: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm over planes (or the batch), ReLU and pooling of a 3x3 convolution of square images with 1 or 3 channels.

    Its map must have an even side. Gives the pooled map and the norm's means and 1/std, (N or 1, channels). The weight
    may be a copy for each of K classes, (K, channels, ...) and all alike, whose images follow each other: its gradient
    is then each class's own.
    """
    out: tuple[Tensor, Tensor, Tensor] = _FirstBlock.apply(images, weight, gain, bias, padding, batch)
    return out


@torch.no_grad()
def first_block_known(
    images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, mean: Tensor, rstd: Tensor
) -> Tensor:
    """The same with the norm's statistics known, (channels,) each."""
    return _applied(_packed(images, padding), _spread_filters(weight), gain, bias, mean[None], rstd[None])
