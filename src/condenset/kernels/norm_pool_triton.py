"""Triton code of the fused norm, ReLU and 2x2 average pooling. Maps are in channels-last layout.

`norm_pool_registers` is the faster code for small maps.
"""

from condenset.kernels.runtime import jit, norm_backward_terms, norm_scale_shift, tl


@jit
def corner_offsets(m, c, CORNER: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Return where one of the four values that each pooled pixel m averages is stored."""
    pixel = (m // (WIDTH // 2)) * (2 * WIDTH) + (m % (WIDTH // 2)) * 2 + (CORNER // 2) * WIDTH + CORNER % 2
    return pixel[:, None] * CHANNELS + c[None, :]


@jit
def load_corner(maps, m, c, inside, CORNER: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Return one of the four values that each pooled pixel m averages."""
    return tl.load(maps + corner_offsets(m, c, CORNER, WIDTH, CHANNELS), mask=inside, other=0.0).to(tl.float32)


@jit
def norm_relu(values, scale, shift):
    return tl.maximum(values * scale[None, :] + shift[None, :], 0.0)


@jit
def plane_statistics(
    maps,
    means,
    variances,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute mean and variance of every plane."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    num: tl.constexpr = HEIGHT * WIDTH
    maps += image * num * CHANNELS
    # Subtract the first pixel of the plane, so that a large mean causes no cancellation.
    pivot = tl.load(maps + c, mask=c_mask, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, num, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < num)[:, None] & c_mask[None, :]
        values = tl.load(maps + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - pivot[None, :], 0.0)
        sums += values
        squares += values * values
    mean = tl.sum(sums, axis=0) / num
    variance = tl.maximum(tl.sum(squares, axis=0) / num - mean * mean, 0.0)
    tl.store(means + image * CHANNELS + c, mean + pivot, mask=c_mask)
    tl.store(variances + image * CHANNELS + c, variance, mask=c_mask)


@jit
def apply(
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
    """Map maps (N, H, W, C) to out (N, H//2, W//2, C) with given statistics of the norm."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    num_out: tl.constexpr = (HEIGHT // 2) * (WIDTH // 2)
    maps += image * HEIGHT * WIDTH * CHANNELS
    out += image * num_out * CHANNELS
    _, _, scale, shift = norm_scale_shift(gain, bias, means, rstds, image * PER_IMAGE, c, c_mask, CHANNELS)
    for first in range(0, num_out, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        inside = (m < num_out)[:, None] & c_mask[None, :]
        total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for corner in tl.static_range(4):
            values = load_corner(maps, m, c, inside, corner, WIDTH, CHANNELS)
            total += norm_relu(values, scale, shift)
        tl.store(out + m[:, None] * CHANNELS + c[None, :], (total * 0.25).to(out.dtype.element_ty), mask=inside)


@jit
def _norm_grad(
    maps, grads, m, c, c_mask, scale, shift, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr
):
    """Return, for pixels m, the gradient at the norm's output (through ReLU and pooling), the values, and a mask."""
    y, x = m // WIDTH, m % WIDTH
    out_y, out_x = y // 2, x // 2
    out_width: tl.constexpr = WIDTH // 2
    inside = (m < HEIGHT * WIDTH)[:, None] & c_mask[None, :]
    # The last row or column of an odd side is not pooled.
    pooled = inside & ((out_y < HEIGHT // 2) & (out_x < out_width))[:, None]
    values = tl.load(maps + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32)
    window = out_y * out_width + out_x
    grad = tl.load(grads + window[:, None] * CHANNELS + c[None, :], mask=pooled, other=0.0).to(tl.float32)
    is_active = values * scale[None, :] + shift[None, :] > 0
    return tl.where(is_active, grad * 0.25, 0.0), values, inside


@jit
def norm_sums(
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
    """Compute, per plane, the sum of the gradients at the norm's output, and of gradient times normalised value."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    maps += image * HEIGHT * WIDTH * CHANNELS
    grads += image * (HEIGHT // 2) * (WIDTH // 2) * CHANNELS
    mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, image * PER_IMAGE, c, c_mask, CHANNELS)
    grad_sum = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    product_sum = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, HEIGHT * WIDTH, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        norm_grad, values, _ = _norm_grad(maps, grads, m, c, c_mask, scale, shift, HEIGHT, WIDTH, CHANNELS)
        grad_sum += norm_grad
        product_sum += norm_grad * (values - mean[None, :])
    tl.store(sums + image * CHANNELS + c, tl.sum(grad_sum, axis=0), mask=c_mask)
    tl.store(products + image * CHANNELS + c, tl.sum(product_sum, axis=0) * rstd, mask=c_mask)


@jit
def map_grads(
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
    """Compute the gradient of the maps; `count` values share a mean."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    maps += image * HEIGHT * WIDTH * CHANNELS
    out += image * HEIGHT * WIDTH * CHANNELS
    grads += image * (HEIGHT // 2) * (WIDTH // 2) * CHANNELS
    row = image * PER_IMAGE
    mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, row, c, c_mask, CHANNELS)
    offset, factor = norm_backward_terms(sums, products, row, mean, rstd, c, c_mask, count, CHANNELS)
    for first in range(0, HEIGHT * WIDTH, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        norm_grad, values, inside = _norm_grad(maps, grads, m, c, c_mask, scale, shift, HEIGHT, WIDTH, CHANNELS)
        grad = scale[None, :] * (norm_grad - offset[None, :] - values * factor[None, :])
        tl.store(out + m[:, None] * CHANNELS + c[None, :], grad.to(out.dtype.element_ty), mask=inside)
