"""Fused norm, ReLU and 2x2 average pooling of a convolution's output, with gradients.

Instance norm treats every plane (image, channel) separately. A program that holds whole planes of an image therefore
reads a small map only once. Statistics are float32.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels import norm_pool_registers, norm_pool_triton
from condenset.kernels.image_sums import sum_norm_gradients
from condenset.kernels.runtime import NORM_EPSILON, launch, triton

MAX_PIXELS = 256  # pooled pixels per plane that fit into the registers of a program


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, maps: Tensor, gain: Tensor, bias: Tensor, batch_norm: bool, layout: torch.memory_format
    ) -> tuple[Tensor, Tensor, Tensor]:
        num, channels, height, width = maps.shape
        maps = maps.contiguous(memory_format=torch.channels_last)
        means = torch.empty(num, channels, device=maps.device)
        size = (height, width, channels)
        if _fits_into_registers(height, width, batch_norm):
            shape = (num, channels, height // 2, width // 2)
            out = torch.empty(shape, dtype=maps.dtype, device=maps.device, memory_format=layout)
            rstds, inputs = torch.empty_like(means), (maps, gain, bias)
            grid, options = _grid_in_registers(num, channels, height * width // 4, 128)
            outputs, strides = (out, means, rstds), _pixel_and_channel_stride(out)
            launch(norm_pool_registers.forward_in_registers, grid, *inputs, *outputs, *size, *strides, **options)
        else:
            grid, options = _grid(num, channels)
            variances = torch.empty_like(means)
            launch(norm_pool_triton.plane_statistics, grid, maps, means, variances, *size, **options)
            if batch_norm:
                variance_of_means, means = torch.var_mean(means, 0, correction=0, keepdim=True)
                variances = variances.mean(0, keepdim=True) + variance_of_means
            rstds = (variances + NORM_EPSILON.value).rsqrt()
            out = _apply(maps, gain, bias, means, rstds).permute(0, 3, 1, 2)
        ctx.save_for_backward(maps, gain, bias, means, rstds)
        ctx.batch_norm = batch_norm
        ctx.set_materialize_grads(False)  # no zeros for the unused gradients of the statistics
        ctx.mark_non_differentiable(means, rstds)
        return out, means, rstds

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        maps, gain, bias, means, rstds = ctx.saved_tensors
        num, channels, height, width = maps.shape
        in_registers = _fits_into_registers(height, width, ctx.batch_norm)
        if not (in_registers and grads.is_contiguous()):
            grads = grads.contiguous(memory_format=torch.channels_last)
        sums_and_products, out = torch.empty(2, num, channels, device=maps.device), torch.empty_like(maps)
        inputs, size = (maps, gain, bias, means, rstds, grads), (height, width, channels)
        summing = {"batch_norm": ctx.batch_norm, "needed": ctx.needs_input_grad[1]}
        if in_registers:
            grid, options = _grid_in_registers(num, channels, height * width // 4, 64)
            outputs, strides = (*sums_and_products, out), _pixel_and_channel_stride(grads)
            launch(norm_pool_registers.backward_in_registers, grid, *inputs, *outputs, *size, *strides, **options)
            totals = sum_norm_gradients(sums_and_products, gain.dtype, **summing)
        else:
            grid, options = _grid(num, channels)
            per_image, count = int(not ctx.batch_norm), float(height * width * (num if ctx.batch_norm else 1))
            launch(norm_pool_triton.norm_sums, grid, *inputs, *sums_and_products, *size, per_image, **options)
            totals = sum_norm_gradients(sums_and_products, gain.dtype, **summing)
            terms = sums_and_products if totals is None or not ctx.batch_norm else totals
            launch(norm_pool_triton.map_grads, grid, *inputs, *terms, out, count, *size, per_image, **options)
        bias_grad, gain_grad = (None, None) if totals is None else totals.to(gain.dtype)
        return out, gain_grad, bias_grad, None, None


def _apply(maps: Tensor, gain: Tensor, bias: Tensor, means: Tensor, rstds: Tensor) -> Tensor:
    """Return (N, H//2, W//2, C) from channels-last maps and the statistics of the norm."""
    num, channels, height, width = maps.shape
    out = maps.new_empty(num, height // 2, width // 2, channels)
    grid, options = _grid(num, channels)
    per_image = int(len(means) == num)
    launch(
        norm_pool_triton.apply, grid, maps, gain, bias, means, rstds, out, height, width, channels, per_image, **options
    )
    return out


def _pixel_and_channel_stride(maps: Tensor) -> tuple[int, int]:
    """Return the strides of (N, C, H, W) maps whose pixels or channels follow each other."""
    _, channels, height, width = maps.shape
    return (1, height * width) if maps.is_contiguous() else (channels, 1)


def _grid(num: int, channels: int, rows: int = 64, max_block: int = 64) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid over images and blocks of channels, and the launch options."""
    block = min(max_block, int(triton.next_power_of_2(channels)))
    return (num, -(-channels // block)), {"BLOCK_M": rows, "BLOCK_C": block, "num_warps": 4}


def _fits_into_registers(height: int, width: int, batch_norm: bool) -> bool:
    """Return whether a program can hold whole planes, and needs no others for the statistics."""
    return not batch_norm and height % 2 == width % 2 == 0 and height * width // 4 <= MAX_PIXELS


def _grid_in_registers(
    num: int, channels: int, num_pooled: int, values_per_thread: int
) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid and the launch options of programs that hold planes of `num_pooled` pooled pixels."""
    rows = max(16, int(triton.next_power_of_2(num_pooled)))
    grid, options = _grid(num, channels, rows, 32 if rows >= 64 else 64)
    options["num_warps"] = max(1, rows * options["BLOCK_C"] // (8 * values_per_thread))  # a pooled pixel has 4 values
    return grid, options


def norm_relu_pool(
    maps: Tensor,
    gain: Tensor,
    bias: Tensor,
    *,
    batch_norm: bool = False,
    layout: torch.memory_format = torch.channels_last,
) -> tuple[Tensor, Tensor, Tensor]:
    """Apply instance or batch norm, ReLU and 2x2 average pooling to maps (N, C, H, W).

    Args:
        maps: The maps.
        gain, bias: Weight and bias of the norm (C,).
        batch_norm: Compute the statistics over the batch instead of each image.
        layout: The preferred layout of the pooled map. It does not change the values.

    Returns:
        The pooled map, and the means and 1/std of the norm, (N, C) or (1, C).
    """
    out: tuple[Tensor, Tensor, Tensor] = _NormReluPool.apply(maps, gain, bias, batch_norm, layout)
    return out


@torch.no_grad()
def norm_relu_pool_eval(maps: Tensor, gain: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    """Apply the same layers with given statistics of the norm, (C,) each. It has no gradient."""
    maps = maps.contiguous(memory_format=torch.channels_last)
    return _apply(maps, gain, bias, mean[None], rstd[None]).permute(0, 3, 1, 2)
