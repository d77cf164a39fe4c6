"""Triton code of the fused instance norm, ReLU and 2x2 average pooling, for maps whose planes fit into registers.

A program holds whole planes of an image, so it reads a map once.
"""

from condenset.kernels.norm_pool_triton import corner_offsets, load_corner, norm_relu
from condenset.kernels.runtime import NORM_EPSILON, jit, norm_scale_shift, tl


@jit
def _square(values, mean, inside):
    distance = tl.where(inside, values - mean[None, :], 0.0)
    return distance * distance


@jit
def forward_in_registers(
    maps,
    gain,
    bias,
    out,
    means,
    rstds,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXEL_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Map maps (N, H, W, C) of even sides to out (N, H/2, W/2, C). A program reads BLOCK_C planes of an image.

    The strides are those of `out`.
    """
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    m = tl.arange(0, BLOCK_M)
    inside = (m < num // 4)[:, None] & c_mask[None, :]
    v0 = load_corner(maps, m, c, inside, 0, WIDTH, CHANNELS)
    v1 = load_corner(maps, m, c, inside, 1, WIDTH, CHANNELS)
    v2 = load_corner(maps, m, c, inside, 2, WIDTH, CHANNELS)
    v3 = load_corner(maps, m, c, inside, 3, WIDTH, CHANNELS)
    mean = tl.sum((v0 + v1) + (v2 + v3), axis=0) / num
    square = (_square(v0, mean, inside) + _square(v1, mean, inside)) + (
        _square(v2, mean, inside) + _square(v3, mean, inside)
    )
    rstd = tl.rsqrt(tl.sum(square, axis=0) / num + NORM_EPSILON)
    tl.store(means + image * CHANNELS + c, mean, mask=c_mask)
    tl.store(rstds + image * CHANNELS + c, rstd, mask=c_mask)
    scale = tl.load(gain + c, mask=c_mask, other=0.0).to(tl.float32) * rstd
    shift = tl.load(bias + c, mask=c_mask, other=0.0).to(tl.float32) - mean * scale
    total = norm_relu(v0, scale, shift) + norm_relu(v1, scale, shift)
    total += norm_relu(v2, scale, shift) + norm_relu(v3, scale, shift)
    target = out + image * (num // 4) * CHANNELS + m[:, None] * PIXEL_STRIDE + c[None, :] * CHANNEL_STRIDE
    tl.store(target, (total * 0.25).to(out.dtype.element_ty), mask=inside)


@jit
def _corner_grad(values, grad, scale, shift):
    """Return the gradient at the norm's output for one of the four values that a pooled pixel averages."""
    return tl.where(values * scale[None, :] + shift[None, :] > 0, grad, 0.0)


@jit
def _corner_map_grad(norm_grad, values, offset, factor, scale):
    """Return the gradient of one of the four values."""
    return scale[None, :] * (norm_grad - offset[None, :] - values * factor[None, :])


@jit
def backward_in_registers(
    maps,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    out,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXEL_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute what `norm_sums` and `map_grads` do, for instance norm and maps of even sides, reading them once.

    The strides are those of `grads`.
    """
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    out += image * num * CHANNELS
    mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, image, c, c_mask, CHANNELS)
    m = tl.arange(0, BLOCK_M)
    inside = (m < num // 4)[:, None] & c_mask[None, :]
    source = grads + image * (num // 4) * CHANNELS + m[:, None] * PIXEL_STRIDE + c[None, :] * CHANNEL_STRIDE
    grad = tl.load(source, mask=inside, other=0.0).to(tl.float32) * 0.25
    v0 = load_corner(maps, m, c, inside, 0, WIDTH, CHANNELS)
    v1 = load_corner(maps, m, c, inside, 1, WIDTH, CHANNELS)
    v2 = load_corner(maps, m, c, inside, 2, WIDTH, CHANNELS)
    v3 = load_corner(maps, m, c, inside, 3, WIDTH, CHANNELS)
    g0 = _corner_grad(v0, grad, scale, shift)
    g1 = _corner_grad(v1, grad, scale, shift)
    g2 = _corner_grad(v2, grad, scale, shift)
    g3 = _corner_grad(v3, grad, scale, shift)
    grad_sum = tl.sum((g0 + g1) + (g2 + g3), axis=0)
    center = mean[None, :]
    product = (g0 * (v0 - center) + g1 * (v1 - center)) + (g2 * (v2 - center) + g3 * (v3 - center))
    product_sum = tl.sum(product, axis=0) * rstd
    tl.store(sums + image * CHANNELS + c, grad_sum, mask=c_mask)
    tl.store(products + image * CHANNELS + c, product_sum, mask=c_mask)
    factor = product_sum * rstd / num
    offset = grad_sum / num - mean * factor
    out0 = out + corner_offsets(m, c, 0, WIDTH, CHANNELS)
    tl.store(out0, _corner_map_grad(g0, v0, offset, factor, scale).to(out.dtype.element_ty), mask=inside)
    out1 = out + corner_offsets(m, c, 1, WIDTH, CHANNELS)
    tl.store(out1, _corner_map_grad(g1, v1, offset, factor, scale).to(out.dtype.element_ty), mask=inside)
    out2 = out + corner_offsets(m, c, 2, WIDTH, CHANNELS)
    tl.store(out2, _corner_map_grad(g2, v2, offset, factor, scale).to(out.dtype.element_ty), mask=inside)
    out3 = out + corner_offsets(m, c, 3, WIDTH, CHANNELS)
    tl.store(out3, _corner_map_grad(g3, v3, offset, factor, scale).to(out.dtype.element_ty), mask=inside)
