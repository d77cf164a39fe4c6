"""Differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), with one set of parameters per group of images.

Each group uses one operation. Crop, flip, scale and rotate are affine warps, color is a map of pixel values, cutout is
a mask. Operations that a group does not use have neutral parameters, so all groups are computed in one pass. To augment
two batches in the same way, apply the same `Transform` to both. When images are learned, a group is a class: its real
and synthetic images share one transform.
Shapes: G groups of N images, U uniform numbers.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import kernels
from condenset.errors import check, check_choice
from condenset.kernels import augment as augment_kernel

OPERATIONS = ("color", "crop", "cutout", "flip", "scale", "rotate")
DEFAULT_STRATEGY = "color_crop_cutout_flip_scale_rotate"
NUM_UNIFORMS = 12  # per group: 1 for the choice, then color 3, crop 2, cutout 2, flip 1, scale 2, rotate 1

CROP_SHARE, CUTOUT_SHARE, MAX_SCALE, MAX_DEGREES = 0.125, 0.5, 1.2, 15.0
T = TypeVar("T")

ROTATION = re.compile("rotate([0-9]{1,9})")  # a rotation with its maximum angle


class Transform(NamedTuple):
    """One sampled augmentation per group."""

    theta_G23: Tensor  # maps output to input coordinates, both in [-1, 1]
    color_G3: Tensor  # brightness, saturation, contrast
    mask_GHW: Tensor  # 0 where cutout erases, 1 elsewhere


def parse_strategy(strategy: str, *, allow_hflip: bool = True) -> tuple[str, ...]:
    """Return the operations of a strategy such as "color_crop".

    Args:
        strategy: Operations joined by underscores, or "none". A rotation may include its maximum angle in degrees, such
            as rotate180 for images without an upright orientation.
        allow_hflip: False removes flip.

    Raises:
        UserError: An operation is unknown or repeated, or an angle is invalid.
    """
    names = [] if strategy in ("none", "") else strategy.split("_")
    for name in names:
        check(name != "none", "an augmentation must be either none or operations", strategy)
        check_choice("augmentation", operation_kind(name), ("none", *OPERATIONS))
        check(0 < max_degrees((name,)) <= 180, "a rotation must be by 1 to 180 degrees", name)
    kinds = set(map(operation_kind, names))
    check(len(kinds) == len(names), "an augmentation must name each operation once", strategy)
    return tuple(name for name in names if allow_hflip or name != "flip")


def remove_unused_flip(config: T, *, allow_hflip: bool) -> T:
    """Return a recipe or protocol without flip if the data do not allow it: records state what is applied."""
    settings: Any = config
    strategy = getattr(settings, "augment", "none")
    operations = parse_strategy(strategy, allow_hflip=allow_hflip)
    if operations == parse_strategy(strategy):
        return config
    applied: T = dataclasses.replace(settings, augment="_".join(operations) or "none")
    return applied


def operation_kind(operation: str) -> str:
    """Return the operation without the angle of a rotation."""
    return "rotate" if ROTATION.fullmatch(operation) else operation


def max_degrees(operations: tuple[str, ...]) -> float:
    """Return the maximum angle of the rotation among these operations, in degrees."""
    angles = [float(match[1]) for name in operations if (match := ROTATION.fullmatch(name))]
    return angles[0] if angles else MAX_DEGREES


def sample_transform(uniform_GU: Tensor, operations: tuple[str, ...], size: int, *, shared: bool = False) -> Transform:
    """Return the transform of each group, as a function of NUM_UNIFORMS uniform numbers per group.

    Args:
        uniform_GU: Uniform numbers in [0, 1).
        operations: The operations to choose from.
        size: The image size.
        shared: Use the operation of the first group for all groups. The parameters still differ.
    """
    kinds, max_angle = tuple(map(operation_kind, operations)), math.radians(max_degrees(operations))
    if kernels.available(uniform_GU):
        parameters = augment_kernel.sample_transform(
            uniform_GU,
            tuple(OPERATIONS.index(name) for name in kinds),
            size,
            shared=shared,
            max_shift=max_crop_shift(size),
            cutout_side=cutout_side(size),
            max_scale=MAX_SCALE,
            max_angle=max_angle,
        )
        return Transform(*parameters)
    choice = (uniform_GU[:1, 0].expand(len(uniform_GU)) if shared else uniform_GU[:, 0]) * len(kinds)
    index_G = choice.long().clamp(max=len(kinds) - 1)
    never_G = torch.zeros_like(index_G, dtype=torch.bool)
    on = {name: index_G == kinds.index(name) if name in kinds else never_G for name in OPERATIONS}
    u = dict(zip(OPERATIONS, uniform_GU[:, 1:].split((3, 2, 2, 1, 2, 1), dim=1), strict=True))
    theta_G23 = _affine_matrices(on, u, size, max_angle)
    return Transform(theta_G23, _color_factors(on["color"], u["color"]), _cutout_mask(on["cutout"], u["cutout"], size))


def apply(transform: Transform, images_GNCHW: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Augment all images of a group in the same way.

    Args:
        transform: One augmentation per group.
        images_GNCHW: Normalised float32 images. Pixels from outside of an image become 0, which is the mean colour.
        dtype: The dtype of the result.
    """
    if kernels.available(images_GNCHW):
        return augment_kernel.apply(transform, images_GNCHW, dtype)
    return _apply_plain(transform, images_GNCHW).to(dtype)


def _apply_plain(transform: Transform, images_GNCHW: Tensor) -> Tensor:
    groups, num, channels, height, width = images_GNCHW.shape
    grid_GHW2 = _sampling_grid(transform.theta_G23, height, width)
    warped = F.grid_sample(
        images_GNCHW.reshape(groups, num * channels, height, width),
        grid_GHW2.to(images_GNCHW.dtype),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    x = warped.reshape(images_GNCHW.shape)
    brightness, saturation, contrast = transform.color_G3.to(x.dtype)[:, :, None, None, None, None].unbind(1)
    x = x + brightness
    if channels > 1:
        gray = x.mean(2, keepdim=True)
        x = gray + (x - gray) * saturation
    mean = x.mean((2, 3, 4), keepdim=True)
    x = mean + (x - mean) * contrast
    return x * transform.mask_GHW.to(x.dtype)[:, None, None]


def max_crop_shift(size: int) -> int:
    """Return the maximum shift of a crop, in pixels."""
    return math.floor(CROP_SHARE * size + 0.5)


def cutout_side(size: int) -> int:
    """Return the side of the erased square."""
    return math.floor(CUTOUT_SHARE * size + 0.5)


def _affine_matrices(on: dict[str, Tensor], u: dict[str, Tensor], size: int, max_angle: float) -> Tensor:
    max_shift = max_crop_shift(size)
    shift_G2 = ((u["crop"] * (2 * max_shift + 1)).floor() - max_shift) * on["crop"][:, None] * (2 / size)
    mirror_G = torch.where(on["flip"] & (u["flip"][:, 0] < 0.5), -1.0, 1.0)
    factor_G2 = torch.where(on["scale"][:, None], 1 / MAX_SCALE + u["scale"] * (MAX_SCALE - 1 / MAX_SCALE), 1.0)
    angle_G = (2 * u["rotate"][:, 0] - 1) * max_angle * on["rotate"]
    cos, sin = torch.cos(angle_G), torch.sin(angle_G)
    row_x = torch.stack((cos * factor_G2[:, 0] * mirror_G, -sin, shift_G2[:, 0]), dim=1)
    row_y = torch.stack((sin, cos * factor_G2[:, 1], shift_G2[:, 1]), dim=1)
    return torch.stack((row_x, row_y), dim=1)


def _color_factors(on_G: Tensor, u_G3: Tensor) -> Tensor:
    brightness, saturation, contrast = u_G3.unbind(1)
    values = (brightness - 0.5, 2 * saturation, contrast + 0.5)
    neutral = (0.0, 1.0, 1.0)
    return torch.stack([torch.where(on_G, value, other) for value, other in zip(values, neutral, strict=True)], 1)


def _cutout_mask(on_G: Tensor, u_G2: Tensor, size: int) -> Tensor:
    side = cutout_side(size)
    center_G2 = (u_G2 * (size + 1 - side % 2)).floor()
    first_G2 = center_G2 - side // 2
    pixel = torch.arange(size, device=u_G2.device)
    inside_GS2 = (pixel[:, None] >= first_G2[:, None]) & (pixel[:, None] < first_G2[:, None] + side)
    erased_GHW = inside_GS2[:, :, None, 1] & inside_GS2[:, None, :, 0] & on_G[:, None, None]
    return (~erased_GHW).float()


def _sampling_grid(theta_G23: Tensor, height: int, width: int) -> Tensor:
    """Return the source coordinates (x, y) of every output pixel, in float32: a rounded shift would blur images."""
    x = (2 * torch.arange(width, device=theta_G23.device) + 1) / width - 1
    y = (2 * torch.arange(height, device=theta_G23.device) + 1) / height - 1
    theta = theta_G23[:, :, :, None, None]
    grid_G2HW = theta[:, :, 0] * x + theta[:, :, 1] * y[:, None] + theta[:, :, 2]
    return grid_G2HW.permute(0, 2, 3, 1)
