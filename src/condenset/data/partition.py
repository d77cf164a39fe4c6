"""Partition: a compact image holds several images at a fraction of their resolution (Kim et al., ICML 2022).

With the factor f, an image is divided into f x f parts, and every part decodes to a full image by upsampling. The
storage stays the same, and networks see f² times as many images.
Shapes: N compact images, D = f² decoded images per compact image, f the factor.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset.errors import UserError, check, check_choice
from condenset.io.bytesize import format_bytes

MAX_FACTOR = 8
UPSAMPLINGS = ("bilinear", "bicubic")
MAX_DECODED_BYTES = 32 << 30  # of a set


def check_partition(size: int, factor: int) -> None:
    """Raise a UserError unless images of this size can be divided into `factor` x `factor` parts."""
    check(size % factor == 0, f"partition must divide the image size of {size} pixels", factor)


def check_compact(compact: Tensor, factor: int, upsampling: str, labels: Tensor | None = None) -> None:
    """Raise a UserError unless stored images, and their labels, can be decoded."""
    check_choice("upsampling", upsampling, UPSAMPLINGS)
    has_pixels = compact.ndim == 4 and compact.shape[2] == compact.shape[3] and compact.numel() > 0
    check(has_pixels, "stored images must be square, (N, C, H, H), and not empty", tuple(compact.shape))
    check(compact.dtype == torch.float32, "stored images must be float32", compact.dtype)
    check_partition(compact.shape[-1], factor)
    if labels is not None:
        shape = tuple(labels.shape)
        check(shape[:1] == (len(compact),), f"there must be {len(compact)} labels, one per stored image", shape)
    check_decoded_size(compact.nbytes + (0 if labels is None else labels.nbytes), factor)


def check_decoded_size(num_bytes: int, factor: int) -> None:
    """Raise a UserError if a set of this size needs too much memory when it is decoded, before it is allocated."""
    num_decoded = num_bytes * factor**2
    if factor > 1 and num_decoded > MAX_DECODED_BYTES:
        limit, size = format_bytes(MAX_DECODED_BYTES), format_bytes(num_decoded)
        way_out = "use fewer images or a smaller partition"
        raise UserError(f"a set must decode to at most {limit}, but got {size}; {way_out}")


def decode_partition(compact: Tensor, factor: int, upsampling: str = "bilinear") -> Tensor:
    """Map compact images (..., N, C, H, W) to the images that they hold (..., D * N, C, H, W), D in a row per image."""
    if factor == 1:
        return compact
    *outer, num, channels, size, _ = compact.shape
    part = size // factor
    parts = compact.reshape(-1, channels, factor, part, factor, part).permute(0, 2, 4, 1, 3, 5)
    matrix = _upsampling_matrix(part, size, upsampling, compact.dtype, compact.device)
    decoded = matrix @ (parts @ matrix.mT)
    return decoded.reshape(*outer, num * factor**2, channels, size, size)


@functools.cache
def _upsampling_matrix(part: int, size: int, upsampling: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the (size, part) matrix that upsamples a row.

    Matrix products have deterministic gradients on a GPU, and `F.interpolate` does not.
    """
    with torch.inference_mode(False):  # gradients cannot pass through a matrix from inference mode
        return F.interpolate(torch.eye(part)[None, None], size=(size, part), mode=upsampling)[0, 0].to(device, dtype)


def encode_partition(images: Tensor, factor: int) -> Tensor:
    """Map images (..., D * N, C, H, W) to compact images (..., N, C, H, W) that hold each at a fraction of its size."""
    if factor == 1:
        return images
    *outer, num, channels, size, _ = images.shape
    part = size // factor
    parts = F.avg_pool2d(images.reshape(-1, channels, size, size), factor)
    grid = parts.view(-1, factor, factor, channels, part, part).permute(0, 3, 1, 4, 2, 5)
    return grid.reshape(*outer, num // factor**2, channels, size, size)


def decode_labels(labels: Tensor, factor: int) -> Tensor:
    """Return the labels of the decoded images, given those of the compact images."""
    return torch.repeat_interleave(labels, factor**2, dim=0)
