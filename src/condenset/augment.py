"""Differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), with one set of parameters per group of images.

A strategy has stages, and each group uses one operation of every stage: "crop_flip" has one stage and uses crop or
flip, "color+crop" has two stages and uses both. Crop, flip, scale and rotate are affine warps, color is a map of pixel
values, cutout is a mask. Operations that a group does not use have neutral parameters, so all groups are computed in
one pass: warp, color, mask. To augment two batches in the same way, apply the same `Transform` to both. When images are
learned, a group is a class: its real and synthetic images share one transform.
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
STACKED_STRATEGY = "color+crop+cutout"
NUM_UNIFORMS = 14  # per group: 1 choice, then color 3, crop 2, cutout 2, flip 1, scale 2, rotate 1, then 2 choices
CHOICE_COLUMNS = (0, 12, 13)  # of the stages with several operations; there are at most three

CROP_SHARE, CUTOUT_SHARE, MAX_SCALE, MAX_DEGREES = 0.125, 0.5, 1.2, 15.0
T = TypeVar("T")

ROTATION = re.compile("rotate([0-9]{1,9})")  # a rotation with its maximum angle


Stages = tuple[tuple[str, ...], ...]  # one operation of every stage is used


class Transform(NamedTuple):
    """One sampled augmentation per group."""

    theta_G23: Tensor  # maps output to input coordinates, both in [-1, 1]
    color_G3: Tensor  # brightness, saturation, contrast
    mask_GHW: Tensor  # 0 where cutout erases, 1 elsewhere


def parse_strategy(strategy: str, *, allow_hflip: bool = True) -> Stages:
    """Return the stages of a strategy, such as (("color",), ("crop", "flip")) for "color+crop_flip".

    Args:
        strategy: Stages joined by plus signs, or "none". A stage is a choice of operations joined by underscores. A
            rotation may include its maximum angle in degrees, such as rotate180 for images without an upright
            orientation.
        allow_hflip: False removes flip.

    Raises:
        UserError: An operation is unknown or repeated, or an angle is invalid.
    """
    stages = [] if strategy in ("none", "") else [stage.split("_") for stage in strategy.split("+")]
    names = [name for stage in stages for name in stage]
    for name in names:
        check(name != "none", "an augmentation must be either none or operations", strategy)
        check_choice("augmentation", operation_kind(name), ("none", *OPERATIONS))
        check(0 < max_degrees(((name,),)) <= 180, "a rotation must be by 1 to 180 degrees", name)
    kinds = set(map(operation_kind, names))
    check(len(kinds) == len(names), "an augmentation must name each operation once", strategy)
    allowed = [tuple(name for name in stage if allow_hflip or name != "flip") for stage in stages]
    return tuple(stage for stage in allowed if stage)


def format_strategy(stages: Stages) -> str:
    """Return the strategy that has these stages."""
    return "+".join("_".join(stage) for stage in stages) or "none"


def remove_unused_flip(config: T, *, allow_hflip: bool) -> T:
    """Return a recipe or protocol without flip if the data do not allow it: records state what is applied."""
    settings: Any = config
    strategy = getattr(settings, "augment", "none")
    stages = parse_strategy(strategy, allow_hflip=allow_hflip)
    if stages == parse_strategy(strategy):
        return config
    applied: T = dataclasses.replace(settings, augment=format_strategy(stages))
    return applied


def operation_kind(operation: str) -> str:
    """Return the operation without the angle of a rotation."""
    return "rotate" if ROTATION.fullmatch(operation) else operation


def max_degrees(stages: Stages) -> float:
    """Return the maximum angle of the rotation in these stages, in degrees."""
    angles = [float(match[1]) for stage in stages for name in stage if (match := ROTATION.fullmatch(name))]
    return angles[0] if angles else MAX_DEGREES


class OperationChoice(NamedTuple):
    """When a group uses an operation: if floor(u * num_operations) = position, with the uniform number u at column."""

    column: int
    num_operations: int
    position: int


def _operation_choices(stages: Stages) -> dict[str, OperationChoice]:
    """Return when a group uses each operation of a strategy. An operation that is alone in its stage is always used."""
    choices, columns = {}, iter(CHOICE_COLUMNS)
    for stage in stages:
        column = next(columns) if len(stage) > 1 else CHOICE_COLUMNS[0]
        for position, name in enumerate(stage):
            choices[operation_kind(name)] = OperationChoice(column, len(stage), position)
    return choices


def sample_transform(uniform_GU: Tensor, stages: Stages, size: int, *, shared: bool = False) -> Transform:
    """Return the transform of each group, as a function of NUM_UNIFORMS uniform numbers per group.

    Args:
        uniform_GU: Uniform numbers in [0, 1).
        stages: The stages of the strategy.
        size: The image size.
        shared: Use the operations of the first group for all groups. The parameters still differ.
    """
    choices, max_angle = _operation_choices(stages), math.radians(max_degrees(stages))
    if kernels.available(uniform_GU):
        parameters = augment_kernel.sample_transform(
            uniform_GU,
            {OPERATIONS.index(name): choice for name, choice in choices.items()},
            size,
            shared=shared,
            max_shift=max_crop_shift(size),
            cutout_side=cutout_side(size),
            max_scale=MAX_SCALE,
            max_angle=max_angle,
        )
        return Transform(*parameters)
    chooser_GU = uniform_GU[:1].expand_as(uniform_GU) if shared else uniform_GU
    on = {name: torch.zeros(len(uniform_GU), dtype=torch.bool, device=uniform_GU.device) for name in OPERATIONS}
    for name, (column, num, position) in choices.items():
        on[name] = (chooser_GU[:, column] * num).long().clamp(max=num - 1) == position
    u = dict(zip(OPERATIONS, uniform_GU[:, 1:12].split((3, 2, 2, 1, 2, 1), dim=1), strict=True))
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
    factor_x, factor_y = factor_G2[:, 0] * mirror_G, factor_G2[:, 1]  # scale and mirror first, then rotate and shift
    row_x = torch.stack((cos * factor_x, -sin * factor_y, shift_G2[:, 0]), dim=1)
    row_y = torch.stack((sin * factor_x, cos * factor_y, shift_G2[:, 1]), dim=1)
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
