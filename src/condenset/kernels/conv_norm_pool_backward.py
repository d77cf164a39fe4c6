"""Triton code of the fused first block, backward. `conv_norm_pool_forward` defines regions and corners."""

from condenset.kernels.conv_norm_pool_forward import REGION, ROW, load_filters, load_regions
from condenset.kernels.runtime import jit, norm_backward_terms, norm_scale_shift, tl


@jit
def _norm_grad(regions, weight, grad, scale, shift):
    """Return, for one corner, the gradient at the norm's output and the convolution's values."""
    values = tl.dot(regions, weight)
    return tl.where(values * scale[None, :] + shift[None, :] > 0, grad, 0.0), values


@jit
def _add_sums(sums, products, regions, weight, grad, scale, shift):
    norm_grad, values = _norm_grad(regions, weight, grad, scale, shift)
    return sums + norm_grad, products + norm_grad * values


@jit
def _pooled_grads(grads, m, c, c_mask, OUT: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the gradient that each of the four outputs under a pooled pixel receives."""
    inside = (m < OUT * OUT)[:, None] & c_mask[None, :]
    return tl.load(grads + m[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0).to(tl.float32) * 0.25


@jit
def norm_sums(
    images,
    filters,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    num,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute, per plane, the sum of the gradients at the norm's output, and of gradient times normalised value."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    w0 = load_filters(filters, 0, c, c_mask, CHANNELS)
    w1 = load_filters(filters, 1, c, c_mask, CHANNELS)
    w2 = load_filters(filters, 2, c, c_mask, CHANNELS)
    w3 = load_filters(filters, 3, c, c_mask, CHANNELS)
    one = tl.full((), 1, tl.int64)
    for number in range(tl.program_id(0), num, tl.num_programs(0)):
        image = one * number
        packed = images + image * (2 * OUT + 2) * (2 * OUT + 2) * 4
        pooled_grads = grads + image * OUT * OUT * CHANNELS
        mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, image * PER_IMAGE, c, c_mask, CHANNELS)
        grad_sum = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        product_sum = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = load_regions(packed, m, OUT, BLOCK_M)
            grad = _pooled_grads(pooled_grads, m, c, c_mask, OUT, CHANNELS)
            grad_sum, product_sum = _add_sums(grad_sum, product_sum, regions, w0, grad, scale, shift)
            grad_sum, product_sum = _add_sums(grad_sum, product_sum, regions, w1, grad, scale, shift)
            grad_sum, product_sum = _add_sums(grad_sum, product_sum, regions, w2, grad, scale, shift)
            grad_sum, product_sum = _add_sums(grad_sum, product_sum, regions, w3, grad, scale, shift)
        total = tl.sum(grad_sum, axis=0)
        tl.store(sums + image * CHANNELS + c, total, mask=c_mask)
        tl.store(products + image * CHANNELS + c, (tl.sum(product_sum, axis=0) - mean * total) * rstd, mask=c_mask)


@jit
def _conv_grad(regions, weight, grad, scale, shift, offset, factor):
    """Return the gradient of the convolution's output at one corner."""
    norm_grad, values = _norm_grad(regions, weight, grad, scale, shift)
    return (scale[None, :] * (norm_grad - offset[None, :] - values * factor[None, :])).to(weight.dtype)


@jit
def image_grads(
    images,
    filters,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    out,
    count,
    num,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradients of the regions from a block of channels: out (N, blocks, OUT², 64).

    `gather_region_grads` adds up the blocks.
    """
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    w0 = load_filters(filters, 0, c, c_mask, CHANNELS)
    w1 = load_filters(filters, 1, c, c_mask, CHANNELS)
    w2 = load_filters(filters, 2, c, c_mask, CHANNELS)
    w3 = load_filters(filters, 3, c, c_mask, CHANNELS)
    k = tl.arange(0, REGION)
    one = tl.full((), 1, tl.int64)
    for number in range(tl.program_id(0), num, tl.num_programs(0)):
        image = one * number
        row = image * PER_IMAGE
        packed = images + image * (2 * OUT + 2) * (2 * OUT + 2) * 4
        pooled_grads = grads + image * OUT * OUT * CHANNELS
        target = out + (image * tl.num_programs(1) + tl.program_id(1)) * OUT * OUT * REGION
        mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, row, c, c_mask, CHANNELS)
        offset, factor = norm_backward_terms(sums, products, row, mean, rstd, c, c_mask, count, CHANNELS)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = load_regions(packed, m, OUT, BLOCK_M)
            grad = _pooled_grads(pooled_grads, m, c, c_mask, OUT, CHANNELS)
            total = tl.dot(_conv_grad(regions, w0, grad, scale, shift, offset, factor), tl.trans(w0))
            total = tl.dot(_conv_grad(regions, w1, grad, scale, shift, offset, factor), tl.trans(w1), total)
            total = tl.dot(_conv_grad(regions, w2, grad, scale, shift, offset, factor), tl.trans(w2), total)
            total = tl.dot(_conv_grad(regions, w3, grad, scale, shift, offset, factor), tl.trans(w3), total)
            inside = (m < OUT * OUT)[:, None]
            tl.store(target + m[:, None] * REGION + k[None, :], total.to(out.dtype.element_ty), mask=inside)


@jit
def gather_region_grads(
    regions,
    out,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Compute the gradient of the pixels of an image: sums over up to four regions, always in the same order."""
    image = tl.program_id(0).to(tl.int64)
    side: tl.constexpr = (SIZE + 2 * PADDING - 2) // 2
    regions += image * BLOCKS * side * side * REGION
    out += image * CHANNELS * SIZE * SIZE
    channel = tl.arange(0, 4)
    for first in range(0, SIZE * SIZE, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        y, x = m // SIZE + PADDING, m % SIZE + PADDING
        total = tl.zeros((BLOCK_M, 4), tl.float32)
        for corner in tl.static_range(4):
            region_y, region_x = y // 2 - corner // 2, x // 2 - corner % 2
            inside = (m < SIZE * SIZE) & (region_y >= 0) & (region_y < side) & (region_x >= 0) & (region_x < side)
            start = (region_y * side + region_x) * REGION + (y - 2 * region_y) * ROW + (x - 2 * region_x) * 4
            for block in tl.static_range(BLOCKS):
                source = regions + block * (side * side * REGION) + start[:, None] + channel[None, :]
                total += tl.load(source, mask=inside[:, None], other=0.0).to(tl.float32)
        inside = (m < SIZE * SIZE)[:, None] & (channel < CHANNELS)[None, :]
        tl.store(out + channel[None, :] * (SIZE * SIZE) + m[:, None], total.to(out.dtype.element_ty), mask=inside)


@jit
def filter_grads(
    images,
    filters,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    out,
    count,
    num,
    programs,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the gradient of the filters at one corner: out (classes * programs, 4, 64, C).

    Each of the `programs` of a class adds up its share of the `num` images of the class.
    """
    corner = tl.program_id(1)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    weight = load_filters(filters, corner, c, c_mask, CHANNELS)
    total = tl.zeros((REGION, BLOCK_C), tl.float32)
    one = tl.full((), 1, tl.int64)
    start = tl.program_id(0) // programs * num
    for number in range(start + tl.program_id(0) % programs, start + num, programs):
        image = one * number
        packed = images + image * (2 * OUT + 2) * (2 * OUT + 2) * 4
        mean, rstd, scale, shift = norm_scale_shift(gain, bias, means, rstds, image * PER_IMAGE, c, c_mask, CHANNELS)
        offset, factor = norm_backward_terms(sums, products, image * PER_IMAGE, mean, rstd, c, c_mask, count, CHANNELS)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = load_regions(packed, m, OUT, BLOCK_M)
            grad = _pooled_grads(grads + image * OUT * OUT * CHANNELS, m, c, c_mask, OUT, CHANNELS)
            conv_grad = _conv_grad(regions, weight, grad, scale, shift, offset, factor)
            total = tl.dot(tl.trans(regions), conv_grad, total)
    row = (tl.program_id(0) * 4 + corner) * REGION + tl.arange(0, REGION)
    tl.store(out + row[:, None] * CHANNELS + c[None, :], total, mask=c_mask[None, :])


@jit
def add_corners(
    parts,
    out,
    programs,
    IN_CHANNELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add up the corners and programs of `filter_grads` for one weight of all filters: out (classes, C, c, 3, 3)."""
    group, weight = tl.program_id(0).to(tl.int64), tl.program_id(1)
    in_channel, y, x = weight // 9, weight // 3 % 3, weight % 3
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for first in range(0, programs, BLOCK_P):
        program = first + tl.arange(0, BLOCK_P)
        inside = (program < programs)[:, None] & (c < CHANNELS)[None, :]
        for corner in tl.static_range(4):
            row = (corner // 2 + y) * ROW + (corner % 2 + x) * 4 + in_channel
            row_P = ((group * programs + program) * 4 + corner) * REGION + row
            total += tl.load(parts + row_P[:, None] * CHANNELS + c[None, :], mask=inside, other=0.0)
    sums = tl.sum(total, axis=0).to(out.dtype.element_ty)
    tl.store(out + (group * CHANNELS + c) * IN_CHANNELS * 9 + weight, sums, mask=c < CHANNELS)
