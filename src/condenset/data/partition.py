"""Partition: a stored image holds several images in the same number of values.

With the factor f, a stored image holds f x f images. The decoders "bilinear" and "bicubic" divide it into f x f parts
and enlarge every part (Kim et al., ICML 2022). The decoder "dct" stores the lowest frequencies of every image.
Shapes: N stored images, D decoded images per stored image, f the factor.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import kernels
from condenset.data.frequencies import decode_frequencies, encode_frequencies, stored_spectrum
from condenset.errors import UserError, check, check_choice, check_int
from condenset.io.bytesize import format_bytes
from condenset.kernels import frequencies as frequency_kernel

MAX_FACTOR = 8
DECODERS = ("bilinear", "bicubic", "dct")
MAX_DECODED_BYTES = 32 << 30  # of a set
ChannelStats = tuple[float, ...]


@dataclass(frozen=True)
class PartLayout:
    """How a stored image holds several images.

    Attributes:
        partition: A stored image holds the square of this number of images.
        decoder: How they are decoded: "bilinear" or "bicubic" upsampling of parts, or "dct" from low frequencies.
    """

    partition: int = 1
    decoder: str = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", check_int("partition", self.partition, 1, MAX_FACTOR))
        check_choice("decoder", self.decoder, DECODERS)

    @property
    def num_parts(self) -> int:
        """Images per stored image."""
        return self.partition**2

    @property
    def has_frequencies(self) -> bool:
        """Whether the stored values are coefficients of frequencies instead of pixels."""
        return self.decoder == "dct" and self.partition > 1

    def check_shape(self, channels: int, size: int, *, has_decoders: bool = True) -> None:
        """Raise a UserError unless images of this shape can be stored. The error advises another decoder if allowed."""
        if self.decoder == "dct":
            num_values = channels * size**2
            rule = f"partition must be at most {math.isqrt(num_values)} for images of {num_values} values"
            check(self.num_parts <= num_values, rule, self.partition)
        else:
            is_divisor = size % self.partition == 0
            advice = " unless the decoder is dct" if has_decoders else ""
            check(is_divisor, f"partition must divide the image size of {size} pixels{advice}", self.partition)

    def decode(self, stored: Tensor) -> Tensor:
        """Map stored images (..., N, C, H, W) to the images that they hold (..., D * N, C, H, W), grouped by them."""
        if self.num_parts == 1:
            return stored
        *outer, num, channels, size, _ = stored.shape
        stored_NCHW = stored.reshape(-1, channels, size, size)
        if self.decoder == "dct":
            images = decode_frequencies(stored_NCHW, self.num_parts)
        else:
            images = _enlarge(_split_tiles(stored_NCHW, self.partition).transpose(1, 2), self.decoder)
        return images.reshape(*outer, num * self.num_parts, channels, size, size)

    def encode(self, images: Tensor) -> Tensor:
        """Map images (..., D * N, C, H, W) to stored images (..., N, C, H, W) that hold them with less detail."""
        if self.num_parts == 1:
            return images
        *outer, num, channels, size, _ = images.shape
        groups = images.reshape(-1, self.num_parts, channels, size, size)
        if self.decoder == "dct":
            stored = encode_frequencies(groups)
        else:
            stored = _join_tiles(_shrink(groups, self.partition).transpose(1, 2))
        return stored.reshape(*outer, num // self.num_parts, channels, size, size)

    def decode_labels(self, labels: Tensor) -> Tensor:
        """Return the labels of the decoded images, given those of the stored images."""
        return torch.repeat_interleave(labels, self.num_parts, dim=0)

    def stored_stats(self, mean: Sequence[float], std: Sequence[float]) -> tuple[ChannelStats, ChannelStats]:
        """Return mean and standard deviation per channel that normalise stored images, given those of images."""
        if self.has_frequencies:
            return (0.0,) * len(mean), (statistics.fmean(std),) * len(std)
        return tuple(mean), tuple(std)


UNPARTITIONED = PartLayout()


class NormalizedParts:
    """Decode and encode normalised images, as methods learn them.

    Args:
        layout: How a stored image holds several images.
        mean, std: Normalisation of the images.
        device: The device of the images.
    """

    def __init__(self, layout: PartLayout, mean: Sequence[float], std: Sequence[float], device: torch.device) -> None:
        def to_tensors(*stats: Sequence[float]) -> list[Tensor]:
            return [torch.tensor(values, device=device)[:, None, None] for values in stats]

        self.layout = layout
        self.mean, self.std = to_tensors(mean, std)
        self.stored_mean, self.stored_std = to_tensors(*layout.stored_stats(mean, std))
        self.pixel_range = (-self.mean / self.std, (1 - self.mean) / self.std)
        scale_C11 = math.sqrt(layout.num_parts) * self.stored_std / self.std
        self.scale_shift = scale_C11, -self.mean / self.std  # of images that are decoded by the kernel

    def decode(self, stored: Tensor) -> Tensor:
        """Return the images that stored images hold."""
        if not self.layout.has_frequencies:  # the normalisation can stay
            return self.layout.decode(stored)
        if _has_kernel(stored):
            decoded = frequency_kernel.decode(stored.flatten(0, -4), self._spectrum(stored), *self.scale_shift)
            return decoded.view(*stored.shape[:-4], -1, *stored.shape[-3:])
        return (self.layout.decode(stored * self.stored_std + self.stored_mean) - self.mean) / self.std

    def encode(self, images: Tensor) -> Tensor:
        """Return stored images that hold these images with less detail."""
        if not self.layout.has_frequencies:
            return self.layout.encode(images)
        return (self.layout.encode(images * self.std + self.mean) - self.stored_mean) / self.stored_std

    def clamp_(self, stored: Tensor) -> None:
        """Clamp the pixels to 0..1, in place. The clamped pixels also have frequencies that are not stored."""
        if not self.layout.has_frequencies:
            stored.clamp_(*self.pixel_range)
        elif _has_kernel(stored):
            spectrum = self._spectrum(stored)
            frequency_kernel.clamp_(stored.flatten(0, -4), spectrum, *self.scale_shift, *self.pixel_range)
        else:
            images = self.decode(stored)
            change = images.clamp(*self.pixel_range) - images  # alone, because rounding of all images would add up
            stored.add_(self.layout.encode(change * self.std) / self.stored_std)

    def _spectrum(self, stored: Tensor) -> frequency_kernel.Spectrum:
        return stored_spectrum(*stored.shape[-3:-1], self.layout.num_parts, stored.device)


def _has_kernel(stored: Tensor) -> bool:
    """Return whether a kernel can decode frequencies."""
    fits = stored.is_contiguous() and stored.shape[-1] <= frequency_kernel.MAX_SIZE
    return fits and stored.dtype == torch.float32 and kernels.available(stored)


def check_stored(stored: Tensor, layout: PartLayout, labels: Tensor | None = None) -> None:
    """Raise a UserError unless stored images, and their labels, can be decoded."""
    has_pixels = stored.ndim == 4 and stored.shape[2] == stored.shape[3] and stored.numel() > 0
    check(has_pixels, "stored images must be square, (N, C, H, H), and not empty", tuple(stored.shape))
    check(stored.dtype == torch.float32, "stored images must be float32", stored.dtype)
    layout.check_shape(stored.shape[1], stored.shape[-1])
    if labels is not None:
        shape = tuple(labels.shape)
        check(shape[:1] == (len(stored),), f"there must be {len(stored)} labels, one per stored image", shape)
    check_decoded_size(stored.nbytes + (0 if labels is None else labels.nbytes), layout)


def check_decoded_size(num_bytes: int, layout: PartLayout) -> None:
    """Raise a UserError if a set of this size needs too much memory when it is decoded, before it is allocated."""
    num_decoded = num_bytes * layout.num_parts
    if layout.num_parts > 1 and num_decoded > MAX_DECODED_BYTES:
        limit, size = format_bytes(MAX_DECODED_BYTES), format_bytes(num_decoded)
        way_out = "use fewer images or a smaller partition"
        raise UserError(f"a set must decode to at most {limit}, but got {size}; {way_out}")


def _split_tiles(planes: Tensor, per_side: int) -> Tensor:
    """Split planes (..., H, W) into tiles (..., T, h, w), row by row."""
    tile = planes.shape[-1] // per_side
    tiles = planes.reshape(*planes.shape[:-2], per_side, tile, per_side, tile)
    return tiles.transpose(-3, -2).flatten(-4, -3)


def _join_tiles(tiles: Tensor) -> Tensor:
    """Join tiles (..., T, h, w) to planes (..., H, W): the inverse of `_split_tiles`."""
    *outer, num, height, width = tiles.shape
    per_side = math.isqrt(num)
    rows = tiles.reshape(*outer, per_side, per_side, height, width).transpose(-3, -2)
    return rows.reshape(*outer, per_side * height, per_side * width)


def _enlarge(planes: Tensor, upsampling: str) -> Tensor:
    """Enlarge the f² parts (N, f², C, h, w) of images to their size."""
    size = planes.shape[-1] * math.isqrt(planes.shape[1])
    matrix = _upsampling_matrix(planes.shape[-1], size, upsampling, planes.dtype, planes.device)
    return matrix @ (planes @ matrix.mT)


def _shrink(images: Tensor, factor: int) -> Tensor:
    """Shrink images (..., C, H, W) by the mean of squares of `factor` pixels."""
    *outer, channels, height, width = images.shape
    small = F.avg_pool2d(images.reshape(-1, channels, height, width), factor)
    return small.reshape(*outer, *small.shape[1:])


@functools.cache
def _upsampling_matrix(part: int, size: int, upsampling: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the (size, part) matrix that enlarges a row.

    Matrix products have deterministic gradients on a GPU, and `F.interpolate` does not.
    """
    with torch.inference_mode(False):  # gradients cannot pass through a matrix from inference mode
        # Only the interpolation of images has a bicubic mode. It leaves the second dimension as it is.
        return F.interpolate(torch.eye(part)[None, None], size=(size, part), mode=upsampling)[0, 0].to(device, dtype)
