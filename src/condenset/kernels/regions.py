"""Kernels of a ConvNet's first block, convolution, norm, ReLU and average pooling, whose map never leaves the chip.

With 1 or 3 input channels computing the convolution again costs less than storing it. Images are packed first: a
border of zeros, and 4 channels a pixel, of which the last is 1 and those without an image are 0. A pooled pixel then
looks at a *region*, 4x4 pixels of 4 channels, 64 numbers; the four outputs that it averages are products of that region
with the filter at four places in it, where the filter is 0 for the last channel.

The norm needs no pass over the map. With R the (pixels, 64) regions of an image, a filter w has the sum of squares
w'(R'R)w over its outputs, and the sum is a row of (R'R)w, thanks to the channel of ones: the 64x64 Gram matrix of the
regions gives every channel's mean and variance. Summed over the images it gives batch norm's.

The convolution's own bias is not asked for: the norm takes a plane's mean away, and the bias with it.
"""

from condenset.kernels.runtime import affine, jit, levels, tl

EPSILON = tl.constexpr(1e-5)  # of nn.GroupNorm and nn.BatchNorm2d
REGION = tl.constexpr(64)  # numbers of a region
RUN = tl.constexpr(16)  # of them in a row


@jit
def pack(images, out, SIZE: tl.constexpr, CHANNELS: tl.constexpr, PADDING: tl.constexpr, BLOCK: tl.constexpr):
    """images (N, c, H, H) -> out (N, H + 2 PADDING, H + 2 PADDING, 4); the last channel is 1."""
    image = tl.program_id(0).to(tl.int64)
    side: tl.constexpr = SIZE + 2 * PADDING
    images += image * CHANNELS * SIZE * SIZE
    out += image * side * side * 4
    for first in range(0, side * side * 4, BLOCK):
        place = first + tl.arange(0, BLOCK)
        channel, pixel = place % 4, place // 4
        y, x = pixel // side - PADDING, pixel % side - PADDING
        there = (channel < CHANNELS) & (y >= 0) & (y < SIZE) & (x >= 0) & (x < SIZE)
        values = tl.load(images + (channel * SIZE + y) * SIZE + x, mask=there, other=0.0)
        values = tl.where(channel == 3, 1.0, values.to(tl.float32))
        tl.store(out + place, values.to(out.dtype.element_ty), mask=place < side * side * 4)


@jit
def spread(weight, out, IN_CHANNELS: tl.constexpr, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """weight (C, c, 3, 3) -> out (4, 64, C): the filters at the four places of a region, zero around them."""
    place = tl.program_id(0)
    k, c = tl.arange(0, REGION), tl.arange(0, BLOCK_C)
    y, x, channel = k // RUN - place // 2, (k % RUN) // 4 - place % 2, k % 4
    within = (y >= 0) & (y < 3) & (x >= 0) & (x < 3) & (channel < IN_CHANNELS)
    there = within[:, None] & (c < CHANNELS)[None, :]
    start = (channel * 9 + y * 3 + x)[:, None] + c[None, :] * (IN_CHANNELS * 9)
    values = tl.load(weight + start, mask=there, other=0.0)
    at = (k + place * REGION)[:, None] * CHANNELS + c[None, :]
    tl.store(out + at, values, mask=(c < CHANNELS)[None, :] & (k[:, None] >= 0))


@jit
def _filter(filters, place, c, c_in, CHANNELS: tl.constexpr):
    """(64, C) the filters at one place of the region."""
    start = (tl.arange(0, REGION) + place * REGION)[:, None] * CHANNELS + c[None, :]
    return tl.load(filters + start, mask=c_in[None, :], other=0.0)


@jit
def _regions(images, m, OUT: tl.constexpr, BLOCK_M: tl.constexpr):
    """(M, 64) the regions of the pooled pixels m of one packed image; zeros beyond the last."""
    stride: tl.constexpr = (2 * OUT + 2) * 4
    k = tl.arange(0, REGION)
    start = (m // OUT) * (2 * stride) + (m % OUT) * 8
    place = images + start[:, None] + ((k // RUN) * stride + k % RUN)[None, :]
    if OUT * OUT % BLOCK_M == 0:
        return tl.load(place)
    return tl.load(place, mask=(m < OUT * OUT)[:, None], other=0.0)


@jit
def gram(images, grams, OUT: tl.constexpr, BLOCK_M: tl.constexpr):
    """The Gram matrix R'R of one image's regions."""
    image = tl.program_id(0).to(tl.int64)
    images += image * (2 * OUT + 2) * (2 * OUT + 2) * 4
    gram = tl.zeros((REGION, REGION), tl.float32)
    for first in range(0, OUT * OUT, BLOCK_M):
        regions = _regions(images, first + tl.arange(0, BLOCK_M), OUT, BLOCK_M)
        gram = tl.dot(tl.trans(regions), regions, gram)
    k = tl.arange(0, REGION)
    tl.store(grams + image * REGION * REGION + k[:, None] * REGION + k[None, :], gram)


@jit
def _shifted(gram, k, SHIFT: tl.constexpr):
    """A Gram matrix as the filter at a later place meets it: what that has at k, the one at the first has before it."""
    there = k + SHIFT < REGION
    place = gram + (k + SHIFT)[:, None] * REGION + (k + SHIFT)[None, :]
    return tl.load(place, mask=there[:, None] & there[None, :], other=0.0)


@jit
def statistics(grams, filters, means, rstds, rows, num, CHANNELS: tl.constexpr, BLOCK_C: tl.constexpr):
    """The mean and 1/std of every channel's outputs, from the Gram matrices of `num` regions each."""
    c = tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    k = tl.arange(0, REGION)
    weight = _filter(filters, 0, c, c_in, CHANNELS)
    one = tl.full((), 1, tl.int64)
    for number in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = one * number
        mine = grams + row * REGION * REGION
        gram = _shifted(mine, k, 0) + _shifted(mine, k, 4) + _shifted(mine, k, RUN) + _shifted(mine, k, RUN + 4)
        # In two parts, of which the second has what the first's rounding left.
        high = gram.to(weight.dtype)
        low = (gram - high.to(tl.float32)).to(weight.dtype)
        product = tl.dot(low, weight, tl.dot(high, weight))
        mean = tl.sum(tl.where(k[:, None] == 3, product, 0.0), axis=0) / (4 * num)
        square = tl.sum(product * weight.to(tl.float32), axis=0) / (4 * num)
        tl.store(means + row * CHANNELS + c, mean, mask=c_in)
        rstd = tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + EPSILON)
        tl.store(rstds + row * CHANNELS + c, rstd, mask=c_in)


@jit
def _rectified(regions, weight, scale, shift):
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
    """Packed images -> out (N, OUT, OUT, C), with the norm's statistics known."""
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    w0 = _filter(filters, 0, c, c_in, CHANNELS)
    w1 = _filter(filters, 1, c, c_in, CHANNELS)
    w2 = _filter(filters, 2, c, c_in, CHANNELS)
    w3 = _filter(filters, 3, c, c_in, CHANNELS)
    one = tl.full((), 1, tl.int64)
    for number in range(tl.program_id(0), num, tl.num_programs(0)):
        image = one * number
        mine = images + image * (2 * OUT + 2) * (2 * OUT + 2) * 4
        _, _, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = _regions(mine, m, OUT, BLOCK_M)
            total = _rectified(regions, w0, scale, shift)
            total += _rectified(regions, w1, scale, shift)
            total += _rectified(regions, w2, scale, shift)
            total += _rectified(regions, w3, scale, shift)
            place = out + image * OUT * OUT * CHANNELS + m[:, None] * CHANNELS + c[None, :]
            there = (m < OUT * OUT)[:, None] & c_in[None, :]
            tl.store(place, (total * 0.25).to(out.dtype.element_ty), mask=there)


@jit
def _slope(regions, weight, grad, scale, shift):
    """At one place of the regions: the gradient that reaches the norm's output, and the convolution's values."""
    values = tl.dot(regions, weight)
    return tl.where(values * scale[None, :] + shift[None, :] > 0, grad, 0.0), values


@jit
def _added(slopes, tilts, regions, weight, grad, scale, shift):
    slope, values = _slope(regions, weight, grad, scale, shift)
    return slopes + slope, tilts + slope * values


@jit
def _pooled_grads(grads, m, c, c_in, OUT: tl.constexpr, CHANNELS: tl.constexpr):
    """What each of a pooled pixel's four outputs gets."""
    there = (m < OUT * OUT)[:, None] & c_in[None, :]
    return tl.load(grads + m[:, None] * CHANNELS + c[None, :], mask=there, other=0.0).to(tl.float32) * 0.25


@jit
def sums(
    images,
    filters,
    gain,
    bias,
    means,
    rstds,
    grads,
    sums,
    products,
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """What the norm's gradient needs of an image: the sum of the slopes, alone and times the normalised values."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    images += image * (2 * OUT + 2) * (2 * OUT + 2) * 4
    grads += image * OUT * OUT * CHANNELS
    mean, rstd, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
    w0 = _filter(filters, 0, c, c_in, CHANNELS)
    w1 = _filter(filters, 1, c, c_in, CHANNELS)
    w2 = _filter(filters, 2, c, c_in, CHANNELS)
    w3 = _filter(filters, 3, c, c_in, CHANNELS)
    slopes = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tilts = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for first in range(0, OUT * OUT, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        regions = _regions(images, m, OUT, BLOCK_M)
        grad = _pooled_grads(grads, m, c, c_in, OUT, CHANNELS)
        slopes, tilts = _added(slopes, tilts, regions, w0, grad, scale, shift)
        slopes, tilts = _added(slopes, tilts, regions, w1, grad, scale, shift)
        slopes, tilts = _added(slopes, tilts, regions, w2, grad, scale, shift)
        slopes, tilts = _added(slopes, tilts, regions, w3, grad, scale, shift)
    total = tl.sum(slopes, axis=0)
    tl.store(sums + image * CHANNELS + c, total, mask=c_in)
    tl.store(products + image * CHANNELS + c, (tl.sum(tilts, axis=0) - mean * total) * rstd, mask=c_in)


@jit
def _map_grad(regions, weight, grad, scale, shift, level, tilt):
    """The gradient of the convolution's output at one place of the regions."""
    slope, values = _slope(regions, weight, grad, scale, shift)
    return (scale[None, :] * (slope - level[None, :] - values * tilt[None, :])).to(weight.dtype)


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
    OUT: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_IMAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradient of every region from a block of channels, out (N, blocks, OUT², 64); `gather` adds them up."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    images += image * (2 * OUT + 2) * (2 * OUT + 2) * 4
    grads += image * OUT * OUT * CHANNELS
    out += (image * tl.num_programs(1) + tl.program_id(1)) * OUT * OUT * REGION
    mean, rstd, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
    level, tilt = levels(sums, products, image * PER_IMAGE, mean, rstd, c, c_in, count, CHANNELS)
    w0 = _filter(filters, 0, c, c_in, CHANNELS)
    w1 = _filter(filters, 1, c, c_in, CHANNELS)
    w2 = _filter(filters, 2, c, c_in, CHANNELS)
    w3 = _filter(filters, 3, c, c_in, CHANNELS)
    k = tl.arange(0, REGION)
    for first in range(0, OUT * OUT, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        regions = _regions(images, m, OUT, BLOCK_M)
        grad = _pooled_grads(grads, m, c, c_in, OUT, CHANNELS)
        total = tl.dot(_map_grad(regions, w0, grad, scale, shift, level, tilt), tl.trans(w0))
        total = tl.dot(_map_grad(regions, w1, grad, scale, shift, level, tilt), tl.trans(w1), total)
        total = tl.dot(_map_grad(regions, w2, grad, scale, shift, level, tilt), tl.trans(w2), total)
        total = tl.dot(_map_grad(regions, w3, grad, scale, shift, level, tilt), tl.trans(w3), total)
        there = (m < OUT * OUT)[:, None]
        tl.store(out + m[:, None] * REGION + k[None, :], total.to(out.dtype.element_ty), mask=there)


@jit
def gather(
    regions,
    out,
    BLOCKS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDING: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """The gradient of an image's pixel: the sum of its places in up to four regions, always in one order."""
    image = tl.program_id(0).to(tl.int64)
    side: tl.constexpr = (SIZE + 2 * PADDING - 2) // 2
    regions += image * BLOCKS * side * side * REGION
    out += image * CHANNELS * SIZE * SIZE
    channel = tl.arange(0, 4)
    for first in range(0, SIZE * SIZE, BLOCK_M):
        m = first + tl.arange(0, BLOCK_M)
        y, x = m // SIZE + PADDING, m % SIZE + PADDING
        total = tl.zeros((BLOCK_M, 4), tl.float32)
        for place in tl.static_range(4):
            at_y, at_x = y // 2 - place // 2, x // 2 - place % 2
            there = (m < SIZE * SIZE) & (at_y >= 0) & (at_y < side) & (at_x >= 0) & (at_x < side)
            start = (at_y * side + at_x) * REGION + (y - 2 * at_y) * RUN + (x - 2 * at_x) * 4
            for block in tl.static_range(BLOCKS):
                at = regions + block * (side * side * REGION) + start[:, None] + channel[None, :]
                total += tl.load(at, mask=there[:, None], other=0.0).to(tl.float32)
        there = (m < SIZE * SIZE)[:, None] & (channel < CHANNELS)[None, :]
        tl.store(out + channel[None, :] * (SIZE * SIZE) + m[:, None], total.to(out.dtype.element_ty), mask=there)


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
    """The gradient of the filters at one place, out (classes * programs, 4, 64, C), `programs` of them for every class.

    Each program adds up its share of the class's `num` images.
    """
    place = tl.program_id(1)
    c = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    c_in = c < CHANNELS
    weight = _filter(filters, place, c, c_in, CHANNELS)
    total = tl.zeros((REGION, BLOCK_C), tl.float32)
    one = tl.full((), 1, tl.int64)
    start = tl.program_id(0) // programs * num
    for number in range(start + tl.program_id(0) % programs, start + num, programs):
        image = one * number
        mine = images + image * (2 * OUT + 2) * (2 * OUT + 2) * 4
        mean, rstd, scale, shift = affine(gain, bias, means, rstds, image * PER_IMAGE, c, c_in, CHANNELS)
        level, tilt = levels(sums, products, image * PER_IMAGE, mean, rstd, c, c_in, count, CHANNELS)
        for first in range(0, OUT * OUT, BLOCK_M):
            m = first + tl.arange(0, BLOCK_M)
            regions = _regions(mine, m, OUT, BLOCK_M)
            grad = _pooled_grads(grads + image * OUT * OUT * CHANNELS, m, c, c_in, OUT, CHANNELS)
            slope = _map_grad(regions, weight, grad, scale, shift, level, tilt)
            total = tl.dot(tl.trans(regions), slope, total)
    row = (tl.program_id(0) * 4 + place) * REGION + tl.arange(0, REGION)
    tl.store(out + row[:, None] * CHANNELS + c[None, :], total, mask=c_in[None, :])
