"""Decode low frequencies to images in one launch instead of ten, with gradients, and clamp the images in two.

A program transforms one channel of an image: the cosine transform of rows and columns is two matrix products.
Shapes: N stored images, D images per stored image, C channels, S frequencies per side of a spectrum.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels.runtime import jit, launch, tl, triton

MAX_SIZE = 64  # larger planes of an image do not fit into one program


class Spectrum(NamedTuple):
    """Where the stored coefficients are in a spectrum, and the transforms of `condenset.data.frequencies`."""

    index_CSS: Tensor  # int32 positions among the coefficients of an image; -1: not stored
    rows_SH: Tensor
    mixture_CC: Tensor
    num_parts: int


@jit
def _load_matrix(
    matrix, rows, columns, NUM_ROWS: tl.constexpr, NUM_COLUMNS: tl.constexpr, ROW: tl.constexpr, COLUMN: tl.constexpr
):
    """Return a matrix, padded by zeros; ROW and COLUMN are the strides."""
    inside = (rows < NUM_ROWS)[:, None] & (columns < NUM_COLUMNS)[None, :]
    return tl.load(matrix + rows[:, None] * ROW + columns[None, :] * COLUMN, mask=inside, other=0.0)


@jit
def _decode(
    stored,
    index,
    cosines,
    mixture,
    scale,
    shift,
    low,
    high,
    out,
    num_coefficients,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    SIDE: tl.constexpr,
    CLAMPING: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write a channel of a decoded image, or with CLAMPING the change that clamps it to low..high."""
    image, c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    values: tl.constexpr = CHANNELS * SIZE * SIZE
    source = stored + (image // PARTS) * values + (image % PARTS) * num_coefficients
    s, h = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H)
    in_spectrum = (s < SIDE)[:, None] & (s < SIDE)[None, :]
    cosines_SH = _load_matrix(cosines, s, h, SIDE, SIZE, SIZE, 1)
    cosines_HS = _load_matrix(cosines, h, s, SIZE, SIDE, 1, SIZE)
    in_plane = (h < SIZE)[:, None] & (h < SIZE)[None, :]
    spectrum = tl.zeros((BLOCK_S, BLOCK_S), tl.float32)
    for k in tl.static_range(CHANNELS):
        position = tl.load(index + (k * SIDE + s[:, None]) * SIDE + s[None, :], mask=in_spectrum, other=-1)
        coefficients = tl.load(source + position, mask=position >= 0, other=0.0)
        spectrum += coefficients * tl.load(mixture + k * CHANNELS + c)
    plane = tl.dot(cosines_HS, tl.dot(spectrum, cosines_SH, input_precision="tf32x3"), input_precision="tf32x3")
    plane = plane * tl.load(scale + c) + tl.load(shift + c)
    if CLAMPING:
        plane = tl.minimum(tl.maximum(plane, tl.load(low + c)), tl.load(high + c)) - plane
    target = out + image * values + c * SIZE * SIZE + h[:, None] * SIZE + h[None, :]
    tl.store(target, plane, mask=in_plane)


@jit
def _encode(
    images,
    index,
    cosines,
    mixture,
    scale,
    out,
    num_coefficients,
    PARTS: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Add the coefficients of an image, with its channels scaled, to those in `out`: one channel of its spectrum."""
    image, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    values: tl.constexpr = CHANNELS * SIZE * SIZE
    target = out + (image // PARTS) * values + (image % PARTS) * num_coefficients
    s, h = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_H)
    in_spectrum = (s < SIDE)[:, None] & (s < SIDE)[None, :]
    cosines_SH = _load_matrix(cosines, s, h, SIDE, SIZE, SIZE, 1)
    cosines_HS = _load_matrix(cosines, h, s, SIZE, SIDE, 1, SIZE)
    plane = tl.zeros((BLOCK_H, BLOCK_H), tl.float32)
    for c in tl.static_range(CHANNELS):
        channel = _load_matrix(images + image * values + c * SIZE * SIZE, h, h, SIZE, SIZE, SIZE, 1)
        plane += channel * (tl.load(scale + c) * tl.load(mixture + k * CHANNELS + c))
    spectrum = tl.dot(cosines_SH, tl.dot(plane, cosines_HS, input_precision="tf32x3"), input_precision="tf32x3")
    position = tl.load(index + (k * SIDE + s[:, None]) * SIDE + s[None, :], mask=in_spectrum, other=-1)
    stored = tl.load(target + position, mask=position >= 0, other=0.0)
    tl.store(target + position, stored + spectrum, mask=position >= 0)


def _options(images_NCHW: Tensor, spectrum: Spectrum) -> dict[str, int]:
    channels, size = images_NCHW.shape[1:3]
    side = spectrum.index_CSS.shape[-1]
    blocks = {name: max(16, int(triton.next_power_of_2(num))) for name, num in (("BLOCK_S", side), ("BLOCK_H", size))}
    sizes = {"PARTS": spectrum.num_parts, "CHANNELS": channels, "SIZE": size, "SIDE": side}
    return {**sizes, **blocks, "num_warps": 2 if blocks["BLOCK_H"] <= 32 else 4}


def _num_coefficients(images_NCHW: Tensor, spectrum: Spectrum) -> int:
    return images_NCHW[0].numel() // spectrum.num_parts


def _run_decode(stored_NCHW: Tensor, spectrum: Spectrum, affine: tuple[Tensor, ...], *, clamping: bool) -> Tensor:
    num, *shape = stored_NCHW.shape
    out = stored_NCHW.new_empty(num * spectrum.num_parts, *shape)
    launch(
        _decode, out.shape[:2], stored_NCHW, *spectrum[:3], *affine, out, _num_coefficients(out, spectrum),
        CLAMPING=clamping, **_options(out, spectrum),
    )  # fmt: skip
    return out


def _add_encoded(images_NCHW: Tensor, spectrum: Spectrum, scale_C: Tensor, out_NCHW: Tensor) -> None:
    launch(
        _encode, images_NCHW.shape[:2], images_NCHW, *spectrum[:3], scale_C, out_NCHW,
        _num_coefficients(images_NCHW, spectrum), **_options(images_NCHW, spectrum),
    )  # fmt: skip


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stored: Tensor, spectrum: Spectrum, scale: Tensor, shift: Tensor) -> Tensor:
        ctx.spectrum, ctx.shape = spectrum, stored.shape
        ctx.save_for_backward(scale)
        return _run_decode(stored.contiguous(), spectrum, (scale, shift, scale, scale), clamping=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = ctx.saved_tensors
        out = grads.new_zeros(ctx.shape)
        _add_encoded(grads.contiguous(), ctx.spectrum, scale, out)
        return out, None, None, None


def decode(stored_NCHW: Tensor, spectrum: Spectrum, scale_C: Tensor, shift_C: Tensor) -> Tensor:
    """Return the (N * D, C, H, W) images, with their channels scaled and shifted."""
    out: Tensor = _Decode.apply(stored_NCHW, spectrum, scale_C, shift_C)
    return out


@torch.no_grad()
def clamp_(
    stored_NCHW: Tensor, spectrum: Spectrum, scale_C: Tensor, shift_C: Tensor, low_C: Tensor, high_C: Tensor
) -> None:
    """Add the stored frequencies of the change that clamps the scaled and shifted images to low..high."""
    change = _run_decode(stored_NCHW, spectrum, (scale_C, shift_C, low_C, high_C), clamping=True)
    _add_encoded(change, spectrum, 1 / scale_C, stored_NCHW)
