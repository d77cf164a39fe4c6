"""Triton code of the augmentation. A program processes one image.

The backward pass gathers instead of scattering. A source pixel contributes to at most 4x4 output pixels, because the
warps stretch by less than 2. The sum is always taken in the same order, so a run repeats to the bit.
"""

from condenset.kernels.runtime import jit, tl


@jit
def _source_coordinates(theta, x, y, SIZE: tl.constexpr):
    """Return the source coordinates of the output pixels (x, y), in pixels."""
    unit_x = (2 * x + 1).to(tl.float32) / SIZE - 1
    unit_y = (2 * y + 1).to(tl.float32) / SIZE - 1
    source_x = tl.load(theta) * unit_x + tl.load(theta + 1) * unit_y + tl.load(theta + 2)
    source_y = tl.load(theta + 3) * unit_x + tl.load(theta + 4) * unit_y + tl.load(theta + 5)
    return ((source_x + 1) * SIZE - 1) * 0.5, ((source_y + 1) * SIZE - 1) * 0.5


@jit
def _is_shift(theta, SIZE: tl.constexpr):
    """Return whether a warp moves or mirrors the image by whole pixels, so that no interpolation is needed."""
    x, y = tl.load(theta + 2) * (SIZE * 0.5), tl.load(theta + 5) * (SIZE * 0.5)
    error = tl.abs(x - tl.floor(x + 0.5)) + tl.abs(y - tl.floor(y + 0.5))
    error += tl.abs(tl.abs(tl.load(theta)) - 1) + tl.abs(tl.abs(tl.load(theta + 4)) - 1)
    error += tl.abs(tl.load(theta + 1)) + tl.abs(tl.load(theta + 3))
    return error < 1e-5


@jit
def _sample_plane(plane, source_x, source_y, inside, scale, shift, is_shift, SIZE: tl.constexpr):
    """Return bilinear samples of one normalised plane, with zeros outside of it."""
    total = source_x * 0.0
    if is_shift:
        x, y = tl.floor(source_x + 0.5), tl.floor(source_y + 0.5)
        in_plane = inside & (x >= 0) & (x < SIZE) & (y >= 0) & (y < SIZE)
        value = tl.load(plane + (y * SIZE + x).to(tl.int32), mask=in_plane, other=0).to(tl.float32)
        total = tl.where(in_plane, value * scale + shift, 0.0)
    else:
        total = _bilinear(plane, source_x, source_y, inside, scale, shift, SIZE)
    return total


@jit
def _bilinear(plane, source_x, source_y, inside, scale, shift, SIZE: tl.constexpr):
    left, top = tl.floor(source_x), tl.floor(source_y)
    total = source_x * 0.0
    for corner in tl.static_range(4):
        x, y = left + corner % 2, top + corner // 2
        weight = (1 - tl.abs(source_x - x)) * (1 - tl.abs(source_y - y))
        in_plane = inside & (x >= 0) & (x < SIZE) & (y >= 0) & (y < SIZE)
        value = tl.load(plane + (y * SIZE + x).to(tl.int32), mask=in_plane, other=0).to(tl.float32)
        total += tl.where(in_plane, weight * (value * scale + shift), 0.0)
    return total


@jit
def _warp_and_saturate(images, theta, color, scales, shifts, m, is_shift, CHANNELS: tl.constexpr, SIZE: tl.constexpr):
    """Return the three planes (or one) at pixels m after warp, brightness and saturation."""
    inside = m < SIZE * SIZE
    source_x, source_y = _source_coordinates(theta, m % SIZE, m // SIZE, SIZE)
    brightness, saturation = tl.load(color), tl.load(color + 1)
    first = (
        _sample_plane(images, source_x, source_y, inside, tl.load(scales), tl.load(shifts), is_shift, SIZE) + brightness
    )
    second, third = first, first
    if CHANNELS == 3:
        plane: tl.constexpr = SIZE * SIZE
        scale, shift = tl.load(scales + 1), tl.load(shifts + 1)
        second = _sample_plane(images + plane, source_x, source_y, inside, scale, shift, is_shift, SIZE)
        scale, shift = tl.load(scales + 2), tl.load(shifts + 2)
        third = _sample_plane(images + 2 * plane, source_x, source_y, inside, scale, shift, is_shift, SIZE)
        second += brightness
        third += brightness
        gray = (first + second + third) / 3
        first = gray + (first - gray) * saturation
        second = gray + (second - gray) * saturation
        third = gray + (third - gray) * saturation
    return first, second, third


@jit
def forward(
    images,
    index,
    thetas,
    colors,
    masks,
    scales,
    shifts,
    out,
    num,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Augment one image of a group of `num` images: out[n] = augment(images[index[n]])."""
    n = tl.program_id(0)
    group = n // num
    plane: tl.constexpr = SIZE * SIZE
    images += tl.load(index + n).to(tl.int64) * CHANNELS * plane
    out += n.to(tl.int64) * CHANNELS * plane
    theta, color, mask = thetas + group * 6, colors + group * 3, masks + group * plane
    contrast, is_shift = tl.load(color + 2), _is_shift(theta, SIZE)
    mean = 0.0
    if contrast != 1.0:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, plane, BLOCK):
            m = start + tl.arange(0, BLOCK)
            first, second, third = _warp_and_saturate(images, theta, color, scales, shifts, m, is_shift, CHANNELS, SIZE)
            pixel_sum = first + second + third if CHANNELS == 3 else first
            total += tl.where(m < plane, pixel_sum, 0.0)
        mean = tl.sum(total, axis=0) / (CHANNELS * plane)
    for start in range(0, plane, BLOCK):
        m = start + tl.arange(0, BLOCK)
        inside = m < plane
        visible = tl.load(mask + m, mask=inside, other=0.0)
        first, second, third = _warp_and_saturate(images, theta, color, scales, shifts, m, is_shift, CHANNELS, SIZE)
        tl.store(out + m, ((mean + (first - mean) * contrast) * visible).to(out.dtype.element_ty), mask=inside)
        if CHANNELS == 3:
            value = (mean + (second - mean) * contrast) * visible
            tl.store(out + plane + m, value.to(out.dtype.element_ty), mask=inside)
            value = (mean + (third - mean) * contrast) * visible
            tl.store(out + 2 * plane + m, value.to(out.dtype.element_ty), mask=inside)


@jit
def _contrast_grad(grads, mask, contrast, CHANNELS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the gradient that every pixel receives because contrast uses the mean of the image."""
    plane: tl.constexpr = SIZE * SIZE
    mean_grad = 0.0
    if contrast != 1.0:
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, plane, BLOCK):
            m = start + tl.arange(0, BLOCK)
            visible = tl.load(mask + m, mask=m < plane, other=0.0)
            for channel in tl.static_range(CHANNELS):
                total += tl.load(grads + channel * plane + m, mask=m < plane, other=0.0).to(tl.float32) * visible
        mean_grad = (1 - contrast) * tl.sum(total, axis=0) / (CHANNELS * plane)
    return mean_grad


@jit
def _saturated_grad(grads, pixel, visible, contrast, mean_grad, in_output):
    """Return the gradient of one plane after saturation, before contrast and cutout, at these output pixels."""
    return tl.load(grads + pixel, mask=in_output, other=0.0).to(tl.float32) * visible * contrast + mean_grad


@jit
def backward(
    grads,
    thetas,
    colors,
    masks,
    out,
    num,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradient of one image from the gradient of its augmented version."""
    n = tl.program_id(0)
    group = n // num
    plane: tl.constexpr = SIZE * SIZE
    grads += n.to(tl.int64) * CHANNELS * plane
    out += n.to(tl.int64) * CHANNELS * plane
    theta, color, mask = thetas + group * 6, colors + group * 3, masks + group * plane
    saturation, contrast = tl.load(color + 1), tl.load(color + 2)
    mean_grad = _contrast_grad(grads, mask, contrast, CHANNELS, SIZE, BLOCK)
    # The inverse warp gives the output pixel that samples (x, y). Unless the warp is a shift, its neighbours do too.
    a, b, c = tl.load(theta), tl.load(theta + 1), tl.load(theta + 2)
    d, e, f = tl.load(theta + 3), tl.load(theta + 4), tl.load(theta + 5)
    determinant = a * e - b * d
    is_shift = _is_shift(theta, SIZE)
    rounding, side = tl.where(is_shift, 0.5, 0.0), tl.where(is_shift, 1, 4)
    for start in range(0, plane, BLOCK):
        m = start + tl.arange(0, BLOCK)
        inside = m < plane
        x, y = (m % SIZE).to(tl.float32), (m // SIZE).to(tl.float32)
        centered_x, centered_y = (2 * x + 1) / SIZE - 1 - c, (2 * y + 1) / SIZE - 1 - f
        base_x = tl.floor((((e * centered_x - b * centered_y) / determinant + 1) * SIZE - 1) * 0.5 + rounding)
        base_y = tl.floor((((a * centered_y - d * centered_x) / determinant + 1) * SIZE - 1) * 0.5 + rounding)
        first = tl.zeros((BLOCK,), tl.float32)
        second = tl.zeros((BLOCK,), tl.float32)
        third = tl.zeros((BLOCK,), tl.float32)
        for neighbor in range(0, side * side):
            out_x = base_x + tl.where(is_shift, 0, neighbor % 4 - 1)
            out_y = base_y + tl.where(is_shift, 0, neighbor // 4 - 1)
            in_output = inside & (out_x >= 0) & (out_x < SIZE) & (out_y >= 0) & (out_y < SIZE)
            source_x, source_y = _source_coordinates(theta, out_x, out_y, SIZE)
            weight = tl.maximum(1 - tl.abs(source_x - x), 0.0) * tl.maximum(1 - tl.abs(source_y - y), 0.0)
            pixel = (out_y * SIZE + out_x).to(tl.int32)
            in_output = in_output & (weight > 0)
            visible = tl.load(mask + pixel, mask=in_output, other=0.0)
            g0 = _saturated_grad(grads, pixel, visible, contrast, mean_grad, in_output)
            if CHANNELS == 3:
                g1 = _saturated_grad(grads + plane, pixel, visible, contrast, mean_grad, in_output)
                g2 = _saturated_grad(grads + 2 * plane, pixel, visible, contrast, mean_grad, in_output)
                gray = (g0 + g1 + g2) / 3
                first += tl.where(in_output, weight * (gray + (g0 - gray) * saturation), 0.0)
                second += tl.where(in_output, weight * (gray + (g1 - gray) * saturation), 0.0)
                third += tl.where(in_output, weight * (gray + (g2 - gray) * saturation), 0.0)
            else:
                first += tl.where(in_output, weight * g0, 0.0)
        tl.store(out + m, first, mask=inside)
        if CHANNELS == 3:
            tl.store(out + plane + m, second, mask=inside)
            tl.store(out + 2 * plane + m, third, mask=inside)


@jit
def _is_used(chooser, OPERATION: tl.constexpr, COLUMNS: tl.constexpr, COUNTS: tl.constexpr, POSITIONS: tl.constexpr):
    """Return whether a group uses an operation; one that is not in the strategy has the count 0."""
    column: tl.constexpr = (COLUMNS >> (4 * OPERATION)) & 15
    count: tl.constexpr = (COUNTS >> (4 * OPERATION)) & 15
    position: tl.constexpr = (POSITIONS >> (4 * OPERATION)) & 15
    index = tl.minimum((tl.load(chooser + column) * count).to(tl.int32), count - 1)
    return (index == position) & (count > 0)


@jit
def sample_transform(
    uniforms,
    thetas,
    colors,
    masks,
    COLUMNS: tl.constexpr,
    COUNTS: tl.constexpr,
    POSITIONS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARED: tl.constexpr,
    MAX_SHIFT: tl.constexpr,
    CUTOUT_SIDE: tl.constexpr,
    MAX_SCALE: tl.constexpr,
    MAX_ANGLE: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the transform of one group from its WIDTH uniform numbers.

    COLUMNS, COUNTS and POSITIONS hold the choice of each operation, four bits each.
    """
    group = tl.program_id(0)
    u = uniforms + group * WIDTH
    chooser = uniforms if SHARED else u
    color = _is_used(chooser, 0, COLUMNS, COUNTS, POSITIONS)
    crop = _is_used(chooser, 1, COLUMNS, COUNTS, POSITIONS)
    cutout = _is_used(chooser, 2, COLUMNS, COUNTS, POSITIONS)
    flip = _is_used(chooser, 3, COLUMNS, COUNTS, POSITIONS)
    scale = _is_used(chooser, 4, COLUMNS, COUNTS, POSITIONS)
    rotate = _is_used(chooser, 5, COLUMNS, COUNTS, POSITIONS)
    min_scale: tl.constexpr = 1 / MAX_SCALE
    shift_x = tl.where(crop, (tl.floor(tl.load(u + 4) * (2 * MAX_SHIFT + 1)) - MAX_SHIFT) * (2 / SIZE), 0.0)
    shift_y = tl.where(crop, (tl.floor(tl.load(u + 5) * (2 * MAX_SHIFT + 1)) - MAX_SHIFT) * (2 / SIZE), 0.0)
    mirror = tl.where(flip & (tl.load(u + 8) < 0.5), -1.0, 1.0)
    factor_x = tl.where(scale, min_scale + tl.load(u + 9) * (MAX_SCALE - min_scale), 1.0)
    factor_y = tl.where(scale, min_scale + tl.load(u + 10) * (MAX_SCALE - min_scale), 1.0)
    angle = tl.where(rotate, (2 * tl.load(u + 11) - 1) * MAX_ANGLE, 0.0)
    theta = thetas + group * 6
    factor_x = factor_x * mirror
    tl.store(theta, tl.cos(angle) * factor_x)
    tl.store(theta + 1, -tl.sin(angle) * factor_y)
    tl.store(theta + 2, shift_x)
    tl.store(theta + 3, tl.sin(angle) * factor_x)
    tl.store(theta + 4, tl.cos(angle) * factor_y)
    tl.store(theta + 5, shift_y)
    tl.store(colors + group * 3, tl.where(color, tl.load(u + 1) - 0.5, 0.0))
    tl.store(colors + group * 3 + 1, tl.where(color, 2 * tl.load(u + 2), 1.0))
    tl.store(colors + group * 3 + 2, tl.where(color, tl.load(u + 3) + 0.5, 1.0))
    left = tl.floor(tl.load(u + 6) * (SIZE + 1 - CUTOUT_SIDE % 2)) - CUTOUT_SIDE // 2
    top = tl.floor(tl.load(u + 7) * (SIZE + 1 - CUTOUT_SIDE % 2)) - CUTOUT_SIDE // 2
    for start in range(0, SIZE * SIZE, BLOCK):
        m = start + tl.arange(0, BLOCK)
        x, y = m % SIZE, m // SIZE
        erased = cutout & (x >= left) & (x < left + CUTOUT_SIDE) & (y >= top) & (y < top + CUTOUT_SIDE)
        tl.store(masks + group * SIZE * SIZE + m, tl.where(erased, 0.0, 1.0), mask=m < SIZE * SIZE)
