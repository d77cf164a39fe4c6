"""Triton code of the fused first block, forward: convolution, norm, ReLU and 2x2 average pooling.

The output of the convolution is never stored. With 1 or 3 input channels it costs less to compute it again.

- `pack_images` adds a border of zeros and stores 4 channels per pixel. The last channel is 1, unused ones are 0.
- A pooled pixel depends on a *region* of 4x4 packed pixels, 64 numbers. The four convolution outputs that it averages
  are products of the region with the filter shifted to the four *corners* of a 2x2 square. `shift_filters` stores these
  filters, with zeros around them and for the last channel.
- The norm needs no pass over the convolution's output. Let R be the (pixels, 64) matrix of an image's regions. For a
  filter w, the sum of squares of its outputs is w'(R'R)w. The sum of the outputs is a row of (R'R)w, because of the
  channel of ones. So the 64x64 Gram matrix R'R gives the mean and variance of every channel. For batch norm, it is
  summed over the images.
- The bias of the convolution is not needed, because the norm subtracts the mean.
"""

from condenset.kernels.runtime import NORM_EPSILON, jit, norm_scale_shift, tl

REGION = tl.constexpr(64)  # numbers per region
ROW = tl.constexpr(16)  # numbers per row of a region


@jit
def pack_images(images, out, SIZE: tl.constexpr, CHANNELS: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    """Pack images (N, c, H, H) into out (N, H + 2 PADDING, H + 2 PADDING, 4), with ones in the last channel."""
    image = tl.program_id(0).to(tl.int64)
    side: tl.constexpr = SIZE + 2 * PADDING
    images += image * CHANNELS * SIZE * SIZE
    out += image * side * side * 4
    for first in range(0, side * side * 4, BLOCK):
        index = first + tl.arange(0, BLOCK)
        channel, pixel = index % 4, index // 4
        y, x = pixel // side - PADDING, pixel % side - PADDING
        inside = (channel < CHANNELS) & (y >= 0) & (y < SIZE) & (x >= 0) & (x < SIZE)
        values = tl.load(images + (channel * SIZE + y) * SIZE + x, mask=inside, other=0.0)
        values = tl.where(channel == 3, 1.0, values.to(tl.float32))
        tl.store(out + index, values.to(out.dtype.element_ty), mask=index < side * side * 4)


@jit
def shift_filters(weight, out, IN_CHANNELS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Shift the filters (C, c, 3, 3) to the four corners of a region: out (4, 64, C), with zeros around them."""
    corner = tl.program_id(0)
    k, c = tl.arange(0, REGION), tl.arange(0, BLOCK_C)
    y, x, channel = k // ROW - corner // 2, (k % ROW) // 4 - corner % 2, k % 4
    in_filter = (y >= 0) & (y < 3) & (x >= 0) & (x < 3) & (channel < IN_CHANNELS)
    inside = in_filter[:, None] & (c < CHANNELS)[None, :]
    start = (channel * 9 + y * 3 + x)[:, None] + c[None, :] * (IN_CHANNELS * 9)
    values = tl.load(weight + start, mask=inside, other=0.0)
    target = (k + corner * REGION)[:, None] * CHANNELS + c[None, :]
    tl.store(out + target, values, mask=(c < CHANNELS)[None, :] & (k[:, None] >= 0))


@jit
def load_filters(filters, corner, c, c_mask, CHANNELS: tl.constexpr):
    """Return the (64, C) filters of one corner."""
    start = (tl.arange(0, REGION) + corner * REGION)[:, None] * CHANNELS + c[None, :]
    return tl.load(filters + start, mask=c_mask[None, :], other=0.0)


@jit
def load_regions(images, m, OUT: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return the (M, 64) regions of the pooled pixels m of one packed image, with zeros beyond the last pixel."""
    stride: tl.constexpr = (2 * OUT + 2) * 4
    k = tl.arange(0, REGION)
    start = (m // OUT) * (2 * stride) + (m % OUT) * 8
    source = images + start[:, None] + ((k // ROW) * stride + k % ROW)[None, :]
    if OUT * OUT % BLOCK_M == 0:
        return tl.load(source)
    return tl.load(source, mask=(m < OUT * OUT)[:, None], other=0.0)


@jit
def gram_matrix(images, grams, OUT: tl.constexpr, BLOCK_M: tl.constexpr):
    """Compute the Gram matrix R'R of the regions of one image."""
    image = tl.program_id(0).to(tl.int64)
    images += image * (2 * OUT + 2) * (2 * OUT + 2) * 4
    gram = tl.zeros((REGION, REGION), tl.float32)
    for first in range(0, OUT * OUT, BLOCK_M):
        regions = load_regions(images, first + tl.arange(0, BLOCK_M), OUT, BLOCK_M)
        gram = tl.dot(tl.trans(regions), regions, gram)
    k = tl.arange(0, REGION)
    tl.store(grams + image * REGION * REGION + k[:, None] * REGION + k[None, :], gram)


@jit
def _load_shifted(gram, k, SHIFT: tl.constexpr):
    """Return a Gram matrix shifted by SHIFT numbers, to apply the filters of the first corner to another corner."""
    inside = k + SHIFT < REGION
    source = gram + (k + SHIFT)[:, None] * REGION + (k + SHIFT)[None, :]
    return tl.load(source, mask=inside[:, None] & inside[None, :], other=0.0)


@jit
def statistics(grams, filters, means, rstds, rows, num, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Compute mean and 1/std per channel of the convolution's outputs, from the Gram matrices of `num` regions each."""
    c = tl.arange(0, BLOCK_C)
    c_mask = c < CHANNELS
    k = tl.arange(0, REGION)
    weight = load_filters(filters, 0, c, c_mask, CHANNELS)
    one = tl.full((), 1, tl.int64)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = one * number
        source = grams + row * REGION * REGION
        gram = _load_shifted(source, k, 0) + _load_shifted(source, k, 4)
        gram = gram + _load_shifted(source, k, ROW) + _load_shifted(source, k, ROW + 4)
        # The Gram matrix is split into two parts, because rounding it to the dtype of the filters would lose precision.
        high = gram.to(weight.dtype)
        low = (gram - high.to(tl.float32)).to(weight.dtype)
        product = tl.dot(low, weight, tl.dot(high, weight))
        mean = tl.sum(tl.where(k[:, None] == 3, product, 0.0), axis=0) / (4 * num)
        square = tl.sum(product * weight.to(tl.float32), axis=0) / (4 * num)
        tl.store(means + row * CHANNELS + c, mean, mask=c_mask)
        rstd = tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + NORM_EPSILON)
        tl.store(rstds + row * CHANNELS + c, rstd, mask=c_mask)


@jit
def _conv_norm_relu(regions, weight, scale, shift):
    return tl.maximum(tl.dot(regions, weight) * scale[None, :] + shift[None, :], 0.0)


@jit
def apply(
    images,
    filters,
    gain,
    bias,
    means,
    rstds,
    out,
    num,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute out (N, OUT, OUT, C) from packed images, with given statistics of the norm."""
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
        _, _, scale, shift = norm_scale_shift(gain, bias, means, rstds, image * PER_IMAGE, c, c_mask, CHANNELS)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = load_regions(packed, m, OUT, BLOCK_M)
            total = _conv_norm_relu(regions, w0, scale, shift)
            total += _conv_norm_relu(regions, w1, scale, shift)
            total += _conv_norm_relu(regions, w2, scale, shift)
            total += _conv_norm_relu(regions, w3, scale, shift)
            target = out + image * OUT * OUT * CHANNELS + m[:, None] * CHANNELS + c[None, :]
            inside = (m < OUT * OUT)[:, None] & c_mask[None, :]
            tl.store(target, (total * 0.25).to(out.dtype.element_ty), mask=inside)
