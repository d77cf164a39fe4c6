"""ZCA whitening: a linear map after which the pixels of real images are nearly uncorrelated, in place of normalisation.

With the covariance C = U S Uᵀ of the training images, the map is U (S + ε)^(−1/2) Uᵀ, as kornia defines it. The images
stay images. MTT and KIP report results with it.
Shapes: D numbers of an image, C * H * W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from condenset.errors import UserError, check, option_name

EPSILON = 0.1  # added to the variances, as in the code of MTT
MAX_NUMBERS = 4096  # of an image; the matrix has the square of it
BLOCK = 4096  # images that are processed at once


@dataclass(frozen=True, eq=False)
class Whitening:
    """The map from pixels in 0..1 to whitened images: matrix @ (pixels - mean).

    Attributes:
        mean: (D,) mean image.
        matrix: (D, D) symmetric matrix.

    Raises:
        UserError: A tensor has a wrong shape, dtype or value.
    """

    mean: Tensor
    matrix: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.matrix.shape)
        is_square = self.mean.ndim == 1 and shape == (len(self.mean),) * 2 and self.mean.numel() > 0
        check(is_square, "whitening must have a mean (D,) and a matrix (D, D)", (tuple(self.mean.shape), shape))
        check_whitening_size(len(self.mean))
        for tensor in (self.mean, self.matrix):
            check(tensor.dtype == torch.float32, "whitening must be float32", tensor.dtype)
            check(bool(tensor.isfinite().all()), "whitening must be finite", "NaN or infinity")

    def to(self, device: torch.device) -> Whitening:
        """Return the whitening on a device."""
        return Whitening(self.mean.to(device), self.matrix.to(device))

    def apply(self, pixels: Tensor) -> Tensor:
        """Return whitened images (..., C, H, W) of pixels in 0..1."""
        mean, matrix = (tensor.to(pixels) for tensor in (self.mean, self.matrix))
        flat = pixels.flatten(-3)
        whitened: Tensor = ((flat - mean) @ matrix).view_as(pixels)  # the matrix is symmetric
        return whitened

    def undo(self, images: Tensor) -> Tensor:
        """Return the pixels (..., C, H, W) of whitened images."""
        flat, mean, matrix = (
            tensor.to("cpu", torch.float64) for tensor in (images.reshape(-1, len(self.mean)), self.mean, self.matrix)
        )
        pixels: Tensor = torch.linalg.solve(matrix, flat.mT).mT + mean
        return pixels.to(images).view_as(images)

    def apply_in_blocks(self, pixels_NCHW: Tensor, device: torch.device) -> Tensor:
        """Return whitened images of uint8 pixels as float32 on a device, without a float copy of all pixels."""
        whitened = torch.empty(pixels_NCHW.shape, device=device)
        whitening = self.to(device)
        for out, block in zip(whitened.split(BLOCK), pixels_NCHW.split(BLOCK), strict=True):
            out.copy_(whitening.apply(block.to(device).float() / 255))
        return whitened

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that a file contains, by name."""
        return {"whitening.mean": self.mean, "whitening.matrix": self.matrix}


def read_whitening(tensors: Mapping[str, Tensor]) -> Whitening | None:
    """Return the whitening among the tensors of a file, or None if there is none."""
    if "whitening.mean" not in tensors:
        return None
    return Whitening(tensors["whitening.mean"].clone(), tensors["whitening.matrix"].clone())


def check_whitening_size(num: int) -> None:
    """Raise a UserError if the matrix for images of this many numbers would be too large."""
    if num > MAX_NUMBERS:
        raise UserError(
            f"{option_name('zca')} needs images of at most {MAX_NUMBERS} numbers, such as 3x32x32, but got {num}: use "
            "smaller images, or leave it out"
        )


@torch.no_grad()
def fit_whitening(
    pixels_NCHW: Tensor, device: torch.device, report: Callable[[int], None] = lambda done: None
) -> Whitening:
    """Compute the whitening of uint8 images, in float64.

    Args:
        pixels_NCHW: The training images.
        device: The device to compute on. Devices other than CUDA use the CPU.
        report: Called with the number of images that are done.
    """
    num, num_numbers = len(pixels_NCHW), pixels_NCHW[0].numel()
    check_whitening_size(num_numbers)
    device = device if device.type == "cuda" else torch.device("cpu")
    total = torch.zeros(num_numbers, dtype=torch.float64, device=device)
    products = torch.zeros(num_numbers, num_numbers, dtype=torch.float64, device=device)
    for start in range(0, num, BLOCK):
        block = pixels_NCHW[start : start + BLOCK].to(device).flatten(1).double() / 255
        total += block.sum(0)
        products += block.mT @ block
        report(min(start + BLOCK, num))
    mean = total / num
    covariance = (products - num * torch.outer(mean, mean)) / max(num - 1, 1)
    variances, vectors = torch.linalg.eigh(covariance)
    matrix = (vectors * (variances.clamp(min=0) + EPSILON).rsqrt()) @ vectors.mT
    return Whitening(mean.float().cpu(), ((matrix + matrix.mT) / 2).float().cpu())
