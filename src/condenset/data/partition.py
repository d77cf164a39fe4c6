"""Partition: a stored image holds several images in the same number of values (Kim et al., ICML 2022).

With the factor f, a stored image is divided into f x f parts per channel, and every part is enlarged to a full image.
The decoder "ycbcr" stores brightness and colour instead of red, green and blue, the colour at half the resolution, as
JPEG does. Twice as many images fit.
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

from condenset.errors import UserError, check, check_choice, check_int
from condenset.io.bytesize import format_bytes

MAX_FACTOR = 8
DECODERS = ("bilinear", "bicubic", "ycbcr")
MAX_DECODED_BYTES = 32 << 30  # of a set
RGB_TO_YCBCR = (  # of JPEG: brightness in 0..1, the two differences of colour in ±0.5
    (0.299, 0.587, 0.114),
    (-0.168735891647856, -0.331264108352144, 0.5),
    (0.5, -0.418687589158345, -0.081312410841655),
)
ChannelStats = tuple[float, ...]


@dataclass(frozen=True)
class PartLayout:
    """How a stored image holds several images.

    Attributes:
        partition: Parts per side.
        decoder: How the parts are enlarged: "bilinear" or "bicubic"; or "ycbcr", with colour at half the resolution.
    """

    partition: int = 1
    decoder: str = "bilinear"

    def __post_init__(self) -> None:
        check_int("partition", self.partition, 1, MAX_FACTOR)
        check_choice("decoder", self.decoder, DECODERS)

    @property
    def uses_ycbcr(self) -> bool:
        """Whether the values are brightness and colour differences."""
        return self.decoder == "ycbcr"

    @property
    def num_parts(self) -> int:
        """Images per stored image."""
        return self.partition**2 * (2 if self.uses_ycbcr else 1)

    def check_shape(self, channels: int, size: int) -> None:
        """Raise a UserError unless images of this shape can be stored."""
        check(size % self.partition == 0, f"partition must divide the image size of {size} pixels", self.partition)
        if self.uses_ycbcr:
            check(channels == 3, "images must have 3 channels with the decoder ycbcr", channels)
            is_even = size // self.partition % 2 == 0
            rule = f"partition must divide the image size of {size} pixels into parts of even size with ycbcr"
            check(is_even, rule, self.partition)

    def decode(self, stored: Tensor) -> Tensor:
        """Map stored images (..., N, C, H, W) to the images that they hold (..., D * N, C, H, W), grouped by them."""
        if self.num_parts == 1:
            return stored
        *outer, num, channels, size, _ = stored.shape
        planes = stored.reshape(-1, channels, size, size)
        if self.uses_ycbcr:
            luma = _split_tiles(planes[:, :2], self.partition)  # two planes of brightness, one of colour
            chroma = _split_tiles(planes[:, 2], 2 * self.partition)
            pairs = ((luma, 1), (chroma, 2))
            parts = [tiles.reshape(-1, num_planes, *tiles.shape[-2:]) for tiles, num_planes in pairs]
            ycbcr = torch.cat([_enlarge(part, size, "bicubic") for part in parts], 1)
            images = _mix_channels(_ycbcr_to_rgb(stored.dtype, stored.device), ycbcr)
        else:
            images = _enlarge(_split_tiles(planes, self.partition).transpose(1, 2), size, self.decoder)
        return images.reshape(*outer, num * self.num_parts, channels, size, size)

    def encode(self, images: Tensor) -> Tensor:
        """Map images (..., D * N, C, H, W) to stored images (..., N, C, H, W) that hold them at a lower resolution."""
        if self.num_parts == 1:
            return images
        *outer, num, channels, size, _ = images.shape
        groups = images.reshape(-1, self.num_parts, channels, size, size)
        if self.uses_ycbcr:
            ycbcr = _mix_channels(_rgb_to_ycbcr(images.dtype, images.device), groups)
            luma, chroma = _shrink(ycbcr[:, :, :1], self.partition), _shrink(ycbcr[:, :, 1:], 2 * self.partition)
            tiles = luma.reshape(len(groups), 2, -1, *luma.shape[-2:]), chroma.flatten(1, 2)[:, None]
            stored = torch.cat([_join_tiles(part) for part in tiles], 1)
        else:
            stored = _join_tiles(_shrink(groups, self.partition).transpose(1, 2))
        return stored.reshape(*outer, num // self.num_parts, channels, size, size)

    def decode_labels(self, labels: Tensor) -> Tensor:
        """Return the labels of the decoded images, given those of the stored images."""
        return torch.repeat_interleave(labels, self.num_parts, dim=0)

    def stored_stats(self, mean: Sequence[float], std: Sequence[float]) -> tuple[ChannelStats, ChannelStats]:
        """Return mean and standard deviation per channel that normalise stored images, given those of images."""
        if not self.uses_ycbcr:
            return tuple(mean), tuple(std)
        luma = sum(weight * value for weight, value in zip(RGB_TO_YCBCR[0], mean, strict=True))
        return (luma, luma, 0.0), (statistics.fmean(std),) * 3

    def stored_range(self, channels: int) -> tuple[ChannelStats, ChannelStats]:
        """Return the smallest and the largest valid value per channel of stored images."""
        if self.uses_ycbcr:
            return (0.0, 0.0, -0.5), (1.0, 1.0, 0.5)
        return (0.0,) * channels, (1.0,) * channels


UNPARTITIONED = PartLayout()


def suitable_decoder(partition: int, channels: int, size: int) -> str:
    """Return the best decoder for images of this shape: "ycbcr" needs colour, and parts of even size."""
    if partition == 1:
        return UNPARTITIONED.decoder
    has_even_parts = size % partition == 0 and size // partition % 2 == 0
    return "ycbcr" if channels == 3 and has_even_parts else "bicubic"


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
        lower, upper = to_tensors(*layout.stored_range(len(mean)))
        self.stored_range = ((lower - self.stored_mean) / self.stored_std, (upper - self.stored_mean) / self.stored_std)

    def decode(self, stored: Tensor) -> Tensor:
        """Return the images that stored images hold."""
        if not self.layout.uses_ycbcr:  # without a change of channels, the normalisation can stay
            return self.layout.decode(stored)
        return (self.layout.decode(stored * self.stored_std + self.stored_mean) - self.mean) / self.std

    def encode(self, images: Tensor) -> Tensor:
        """Return stored images that hold these images at a lower resolution."""
        if not self.layout.uses_ycbcr:
            return self.layout.encode(images)
        return (self.layout.encode(images * self.std + self.mean) - self.stored_mean) / self.stored_std


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


def _enlarge(planes: Tensor, size: int, upsampling: str) -> Tensor:
    """Enlarge planes (..., h, w) to (..., size, size)."""
    matrix = _upsampling_matrix(planes.shape[-1], size, upsampling, planes.dtype, planes.device)
    return matrix @ (planes @ matrix.mT)


def _shrink(images: Tensor, factor: int) -> Tensor:
    """Shrink images (..., C, H, W) by the mean of squares of `factor` pixels."""
    *outer, channels, height, width = images.shape
    small = F.avg_pool2d(images.reshape(-1, channels, height, width), factor)
    return small.reshape(*outer, *small.shape[1:])


def _mix_channels(matrix: Tensor, images: Tensor) -> Tensor:
    """Multiply the channels of every pixel of (..., 3, H, W) by a matrix."""
    return (matrix @ images.flatten(-2)).reshape(images.shape)


@functools.cache
def _upsampling_matrix(part: int, size: int, upsampling: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the (size, part) matrix that enlarges a row.

    Matrix products have deterministic gradients on a GPU, and `F.interpolate` does not.
    """
    with torch.inference_mode(False):  # gradients cannot pass through a matrix from inference mode
        # Only the interpolation of images has a bicubic mode. It leaves the second dimension as it is.
        return F.interpolate(torch.eye(part)[None, None], size=(size, part), mode=upsampling)[0, 0].to(device, dtype)


@functools.cache
def _rgb_to_ycbcr(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(RGB_TO_YCBCR, dtype=torch.float64).to(device, dtype)


@functools.cache
def _ycbcr_to_rgb(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(RGB_TO_YCBCR, dtype=torch.float64).inverse().to(device, dtype)
