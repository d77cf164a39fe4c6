"""The fused first block of a ConvNet: 3x3 convolution, norm, ReLU and 2x2 average pooling, with gradients."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels import conv_norm_pool_backward as backward_code
from condenset.kernels import conv_norm_pool_forward as forward_code
from condenset.kernels.image_sums import sum_norm_gradients
from condenset.kernels.runtime import launch, num_programs, triton

MAX_CHANNELS = 128  # output channels that fit into one program


class _ConvNormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, batch_norm: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        num, in_channels, size, _ = images.shape
        packed, filters = _pack_images(images, padding), _shift_filters(weight if weight.ndim == 4 else weight[0])
        side = (size + 2 * padding - 2) // 2
        means, rstds = _compute_statistics(packed, filters, side, batch_norm)
        out = _apply(packed, filters, gain, bias, means, rstds)
        ctx.save_for_backward(packed, filters, gain, bias, means, rstds)
        ctx.image, ctx.batch_norm = (size, in_channels, padding), batch_norm
        ctx.num_classes = None if weight.ndim == 4 else len(weight)
        ctx.count = float((num if batch_norm else 1) * 4 * side * side)
        ctx.set_materialize_grads(False)  # no zeros for the unused gradients of the statistics
        ctx.mark_non_differentiable(means, rstds)
        return out, means, rstds

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        packed, filters, gain, bias, means, rstds = ctx.saved_tensors
        num, channels = len(packed), filters.shape[-1]
        grads = grads.contiguous(memory_format=torch.channels_last)
        sums_and_products = torch.empty(2, num, channels, device=grads.device)
        sizes = {"OUT": grads.shape[-1], "CHANNELS": channels, "PER_IMAGE": int(not ctx.batch_norm)}
        inputs: tuple[Tensor, ...] = (packed, filters, gain, bias, means, rstds, grads)
        block = min(64, _padded_width(channels))
        blocks = triton.cdiv(channels, block)
        launch(
            backward_code.norm_sums, (num_programs(num, grads.device, 2 // blocks), blocks), *inputs,
            *sums_and_products, num, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1,
        )  # fmt: skip
        needed = ctx.needs_input_grad[2]
        totals = sum_norm_gradients(sums_and_products, gain.dtype, batch_norm=ctx.batch_norm, needed=needed)
        inputs = (*inputs, *(sums_and_products if totals is None or not ctx.batch_norm else totals))
        image_grad = filter_grad = None
        if ctx.needs_input_grad[0]:
            image_grad = _image_gradient(inputs, sizes, ctx.count, *ctx.image)
        if ctx.needs_input_grad[1]:
            filter_grad = _filter_gradient(inputs, sizes, ctx.count, ctx.image[1], ctx.num_classes or 1)
            filter_grad = filter_grad[0] if ctx.num_classes is None else filter_grad
        bias_grad, gain_grad = (None, None) if totals is None else totals.to(gain.dtype)
        return image_grad, filter_grad, gain_grad, bias_grad, None, None


def _pack_images(images: Tensor, padding: int) -> Tensor:
    """Return bfloat16 images as (N, H + 2 padding, H + 2 padding, 4), with ones in the last channel."""
    num, channels, size, _ = images.shape
    packed = images.new_empty(num, size + 2 * padding, size + 2 * padding, 4)
    launch(
        forward_code.pack_images,
        (num,),
        images.contiguous(),
        packed,
        SIZE=size,
        CHANNELS=channels,
        PADDING=padding,
        BLOCK=2048,
    )
    return packed


def _shift_filters(weight: Tensor) -> Tensor:
    """Return the filters (C, c, 3, 3) shifted to the four corners of a region: (4, 64, C)."""
    channels, in_channels = weight.shape[:2]
    filters = weight.new_empty(4, 64, channels)
    launch(
        forward_code.shift_filters, (4,), weight.contiguous(), filters, IN_CHANNELS=in_channels, CHANNELS=channels,
        BLOCK_C=_padded_width(channels),
    )  # fmt: skip
    return filters


def _compute_statistics(packed: Tensor, filters: Tensor, side: int, batch_norm: bool) -> tuple[Tensor, Tensor]:
    """Return means and 1/std of shape (N, C), or (1, C) for batch norm."""
    num, channels = len(packed), filters.shape[-1]
    grams = torch.empty(num, 64, 64, device=packed.device)
    launch(forward_code.gram_matrix, (num,), packed, grams, OUT=side, BLOCK_M=64, num_warps=4, num_stages=2)
    count = float(side * side)
    if batch_norm:
        grams, count = grams.sum(0, keepdim=True), num * count
    rows = len(grams)
    means, rstds = (torch.empty(rows, channels, device=packed.device) for _ in range(2))
    launch(
        forward_code.statistics, (num_programs(rows, packed.device, 2),), grams, filters, means, rstds, rows, count,
        CHANNELS=channels, BLOCK_C=_padded_width(channels), num_warps=4, num_stages=2,
    )  # fmt: skip
    return means, rstds


def _apply(packed: Tensor, filters: Tensor, gain: Tensor, bias: Tensor, means: Tensor, rstds: Tensor) -> Tensor:
    """Compute the output from packed images and the statistics of the norm."""
    num, side, channels = len(packed), packed.shape[1] // 2 - 1, filters.shape[-1]
    out = packed.new_empty(num, side, side, channels)
    block = min(64, _padded_width(channels))
    blocks = triton.cdiv(channels, block)
    launch(
        forward_code.apply, (num_programs(num, packed.device, 4 // blocks), blocks),
        packed, filters, gain, bias, means, rstds, out, num, OUT=side, CHANNELS=channels,
        PER_IMAGE=int(len(means) == num), BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def _image_gradient(
    inputs: tuple[Tensor, ...], sizes: dict[str, int], count: float, size: int, channels: int, padding: int
) -> Tensor:
    packed, num = inputs[0], len(inputs[0])
    block = min(64, _padded_width(sizes["CHANNELS"]))
    blocks = triton.cdiv(sizes["CHANNELS"], block)
    region_grads = packed.new_empty(num, blocks, sizes["OUT"] ** 2, 64)
    launch(
        backward_code.image_grads, (num_programs(num, packed.device, 2 // blocks), blocks), *inputs, region_grads,
        count, num, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1,
    )  # fmt: skip
    out = packed.new_empty(num, channels, size, size)
    launch(
        backward_code.gather_region_grads, (num,), region_grads, out, BLOCKS=blocks, SIZE=size, CHANNELS=channels,
        PADDING=padding, BLOCK_M=256,
    )  # fmt: skip
    return out


def _filter_gradient(
    inputs: tuple[Tensor, ...], sizes: dict[str, int], count: float, in_channels: int, num_classes: int
) -> Tensor:
    """Return (num_classes, C, c, 3, 3): one gradient per class. All classes have the same number of images."""
    packed, num, channels = inputs[0], len(inputs[0]) // num_classes, sizes["CHANNELS"]
    block = min(64, _padded_width(channels))
    programs = min(num, max(1, num_programs(len(packed), packed.device, 1) // num_classes))
    parts = torch.empty(num_classes, programs, 4, 64, channels, device=packed.device)
    launch(
        backward_code.filter_grads, (num_classes * programs, 4, triton.cdiv(channels, block)), *inputs, parts, count,
        num, programs, **sizes, BLOCK_M=64, BLOCK_C=block, num_warps=4, num_stages=1,
    )  # fmt: skip
    gradient = packed.new_empty(num_classes, channels, in_channels, 3, 3)
    block = min(32, _padded_width(channels))
    launch(
        backward_code.add_corners, (num_classes, 9 * in_channels, triton.cdiv(channels, block)), parts, gradient,
        programs, IN_CHANNELS=in_channels, CHANNELS=channels, BLOCK_P=64, BLOCK_C=block,
    )  # fmt: skip
    return gradient


def _padded_width(channels: int) -> int:
    """Return the channels rounded up to a power of 2, at least 16, as tl.dot needs."""
    return max(16, int(triton.next_power_of_2(channels)))


def conv_norm_relu_pool(
    images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, *, batch_norm: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply a 3x3 convolution, instance or batch norm, ReLU and 2x2 average pooling.

    Args:
        images: Square images (N, c, H, H) with 1 or 3 channels. The convolution's output must have an even side.
        weight: Filters (C, c, 3, 3), or K identical copies of them (K, C, c, 3, 3) for K classes whose images follow
            each other. The gradient of a copy is then the gradient of its class.
        gain: Weight of the norm (C,).
        bias: Bias of the norm (C,).
        padding: Padding of the convolution.
        batch_norm: Compute the statistics over the batch instead of each image.

    Returns:
        The pooled map, and the means and 1/std of the norm, (N, C) or (1, C).
    """
    out: tuple[Tensor, Tensor, Tensor] = _ConvNormReluPool.apply(images, weight, gain, bias, padding, batch_norm)
    return out


@torch.no_grad()
def conv_norm_relu_pool_eval(
    images: Tensor, weight: Tensor, gain: Tensor, bias: Tensor, padding: int, mean: Tensor, rstd: Tensor
) -> Tensor:
    """Apply the same layers with given statistics of the norm, (C,) each. It has no gradient."""
    return _apply(_pack_images(images, padding), _shift_filters(weight), gain, bias, mean[None], rstd[None])
