"""Map batches of pixels to network inputs: normalisation or whitening, then the training augmentation."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset import augment
from condenset.data.whitening import Whitening
from condenset.errors import UserError, check, check_type

MAX_PIXEL = 10.0  # learned images overshoot 0..1 by less; larger floats are in another range, such as 0..255
Constants = tuple[float, ...]  # one number per channel


def normalize(pixels: Tensor, mean: Constants, std: Constants, whitening: Whitening | None = None) -> Tensor:
    """Return (pixels - mean) / std over the channels of (..., C, H, W) pixels in 0..1, or whitened pixels."""
    if whitening is not None:
        return whitening.apply(pixels)
    mean_C11, std_C11 = (torch.tensor(v, dtype=pixels.dtype, device=pixels.device)[:, None, None] for v in (mean, std))
    return (pixels - mean_C11) / std_C11


def denormalize(images: Tensor, mean: Constants, std: Constants, whitening: Whitening | None = None) -> Tensor:
    """Return pixels, nominally in 0..1: the inverse of `normalize`."""
    if whitening is not None:
        return whitening.undo(images)
    mean_C11, std_C11 = (torch.tensor(v, dtype=images.dtype, device=images.device)[:, None, None] for v in (mean, std))
    return images * std_C11 + mean_C11


def to_unit_range(pixels: Tensor) -> Tensor:
    """Return uint8 pixels as float32 in 0..1, and floats as they are."""
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def normalize_pixels(
    pixels_NCHW: Tensor, mean: Constants, std: Constants, whitening: Whitening | None = None
) -> Tensor:
    """Check a batch of pixels, uint8 or floats in 0..1, and normalise or whiten it."""
    _check_batch("pixels", pixels_NCHW, len(mean))
    pixels = to_unit_range(pixels_NCHW)
    check(pixels.is_floating_point(), "pixels must be uint8, or floats in 0..1", str(pixels.dtype))
    largest = float(pixels.detach().abs().max()) if pixels.numel() else 0.0
    if largest > MAX_PIXEL:
        raise UserError(f"pixels must be floats in 0..1, but got {largest:.4g}: divide 0..255 by 255, or give uint8")
    return normalize(pixels, mean, std, whitening)


def augment_inputs(
    inputs_NCHW: Tensor, channels: int, strategy: str, *, allow_hflip: bool, generator: torch.Generator | None
) -> Tensor:
    """Augment normalised images as in training: one random operation per batch, random parameters per image."""
    _check_batch("inputs", inputs_NCHW, channels)
    is_float = inputs_NCHW.is_floating_point()
    check(is_float, "inputs must be normalised images, floats as `normalize` returns them", str(inputs_NCHW.dtype))
    stages = augment.parse_strategy(strategy, allow_hflip=allow_hflip)
    if not stages or not len(inputs_NCHW):
        return inputs_NCHW
    device = generator.device if generator is not None else torch.device("cpu")
    uniform_NU = torch.rand(len(inputs_NCHW), augment.NUM_UNIFORMS, generator=generator, device=device)
    size = inputs_NCHW.shape[-1]
    transform = augment.sample_transform(uniform_NU.to(inputs_NCHW.device), stages, size, shared=True)
    return augment.apply(transform, inputs_NCHW[:, None], inputs_NCHW.dtype)[:, 0]


def _check_batch(name: str, images: Tensor, channels: int) -> None:
    check_type(images, Tensor, f"{name} must be a tensor")
    shape = tuple(images.shape)
    is_batch = len(shape) == 4 and shape[1] == channels and shape[2] == shape[3]
    check(is_batch, f"{name} must be a batch of square images of shape (N, {channels}, H, W)", shape)
