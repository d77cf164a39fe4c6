"""Store several images in the number of values of one, by their lowest frequencies.

The spectrum of an image is its cosine transform over channels, rows and columns. The mean over the channels is
brightness, the other channel frequencies are colour. Images have most of their detail at low frequencies, and in
brightness, so that a fraction of the coefficients holds more of it than a smaller image with as many values.
Shapes: N stored images, D images per stored image, S frequencies per side of a spectrum, M coefficients of an image.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.kernels.frequencies import Spectrum

COLOR_DISTANCE = 10  # a frequency of colour ranks like one of brightness with 10 times its square


def decode_frequencies(stored_NCHW: Tensor, num_parts: int) -> Tensor:
    """Return the (N * D, C, H, W) images of stored coefficients.

    The coefficients are scaled by √D, so that a learning rate has the same effect on the lowest frequencies as with
    enlarged parts, each value of which changes about D pixels.
    """
    channels, size, _ = stored_NCHW.shape[1:]
    positions, side = _lowest_frequencies(channels, size, num_parts, stored_NCHW.device)
    values_NM = stored_NCHW.flatten(1)[:, : num_parts * len(positions)].reshape(-1, len(positions))
    spectra = values_NM.new_zeros(len(values_NM), channels * side**2)
    spectra = spectra.index_copy(1, positions, values_NM * math.sqrt(num_parts)).view(-1, channels, side, side)
    rows, mixture = _matrices(channels, size, side, stored_NCHW)
    return _mix_channels(mixture.mT, rows.mT @ spectra @ rows)


def encode_frequencies(images_NDCHW: Tensor) -> Tensor:
    """Return the (N, C, H, W) stored coefficients of images. The values that remain are 0."""
    num_parts, channels, size, _ = images_NDCHW.shape[1:]
    positions, side = _lowest_frequencies(channels, size, num_parts, images_NDCHW.device)
    rows, mixture = _matrices(channels, size, side, images_NDCHW)
    spectra = rows @ _mix_channels(mixture, images_NDCHW) @ rows.mT
    values_NM = spectra.flatten(2)[..., positions].flatten(1) / math.sqrt(num_parts)
    return F.pad(values_NM, (0, channels * size**2 - values_NM.shape[1])).view(-1, channels, size, size)


def _matrices(channels: int, size: int, side: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (S, H) transform of rows and columns, and the (C, C) transform of channels."""
    return _cosines(size, like.dtype, like.device)[:side], _cosines(channels, like.dtype, like.device)


def _mix_channels(matrix: Tensor, images: Tensor) -> Tensor:
    """Multiply the channels of every pixel of (..., C, H, W) by a matrix."""
    return (matrix @ images.flatten(-2)).reshape(images.shape)


@functools.cache
def _lowest_frequencies(channels: int, size: int, num_parts: int, device: torch.device) -> tuple[Tensor, int]:
    """Return the positions of the stored coefficients in a spectrum (C, S, S), and S."""
    squares = torch.arange(size) ** 2
    distances = (squares[:, None] + squares).repeat(channels, 1, 1)
    distances[1:] *= COLOR_DISTANCE
    lowest = distances.flatten().argsort(stable=True)[: channels * size**2 // num_parts]
    channel, row, column = torch.unravel_index(lowest, distances.shape)
    side = int(torch.maximum(row, column).max()) + 1
    with torch.inference_mode(False):  # gradients cannot pass through tensors from inference mode
        return ((channel * side + row) * side + column).sort().values.to(device), side


@functools.cache
def stored_spectrum(channels: int, size: int, num_parts: int, device: torch.device) -> Spectrum:
    """Return what the kernels need to decode and encode images."""
    positions, side = _lowest_frequencies(channels, size, num_parts, device)
    index_CSS = torch.full((channels, side, side), -1, dtype=torch.int32, device=device)
    index_CSS.view(-1)[positions] = torch.arange(len(positions), dtype=torch.int32, device=device)
    rows_SH, mixture_CC = _cosines(size, torch.float32, device)[:side], _cosines(channels, torch.float32, device)
    return Spectrum(index_CSS, rows_SH.contiguous(), mixture_CC, num_parts)


@functools.cache
def _cosines(num: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the orthonormal (frequency, position) matrix of the cosine transform (DCT-II) of `num` values."""
    with torch.inference_mode(False):
        angles = math.pi / num * torch.arange(num, dtype=torch.float64)[:, None] * (torch.arange(num) + 0.5)
        matrix = angles.cos() * math.sqrt(2 / num)
        matrix[0] = math.sqrt(1 / num)
        return matrix.to(device, dtype)
