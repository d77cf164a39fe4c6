"""Augmentation in one launch, from stored pixels to the input of the network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from condenset.kernels import augment_triton
from condenset.kernels.runtime import launch, triton


def sample_transform(
    uniform_GU: Tensor,
    choices: Mapping[int, tuple[int, int, int]],
    size: int,
    *,
    shared: bool,
    max_shift: int,
    cutout_side: int,
    max_scale: float,
    max_angle: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute theta, color and mask of every group, as `condenset.augment.sample_transform` does.

    `choices` are the `OperationChoice`s, by index into `condenset.augment.OPERATIONS`.
    """
    groups, device = len(uniform_GU), uniform_GU.device
    theta = torch.empty(groups, 2, 3, device=device)
    color = torch.empty(groups, 3, device=device)
    mask = torch.empty(groups, size, size, device=device)
    columns, counts, positions = (
        sum(choice[part] << (4 * operation) for operation, choice in choices.items()) for part in range(3)
    )
    launch(
        augment_triton.sample_transform, (groups,), uniform_GU.contiguous(), theta, color, mask, COLUMNS=columns,
        COUNTS=counts, POSITIONS=positions, WIDTH=uniform_GU.shape[1], SHARED=shared, MAX_SHIFT=max_shift,
        CUTOUT_SIDE=cutout_side, MAX_SCALE=max_scale, MAX_ANGLE=max_angle, SIZE=size, **_launch_options(size),
    )  # fmt: skip
    return theta, color, mask


def _launch_options(size: int, max_block: int = 128, num_warps: int = 4) -> dict[str, int]:
    """Return the launch options for images of size x size."""
    return {"BLOCK": min(max_block, triton.next_power_of_2(size * size)), "num_warps": num_warps}


def take_augmented(
    images_NCHW: Tensor,
    index_GM: Tensor,
    transform: tuple[Tensor, Tensor, Tensor],
    scale_C: Tensor,
    shift_C: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return the images at the indices, normalised and augmented per group: (G, M, C, H, W).

    Args:
        images_NCHW: The stored images, uint8 or float32.
        index_GM: M images for each of G groups.
        transform: The theta, color and mask of each group.
        scale_C, shift_C: The normalisation: value * scale + shift.
        dtype: The dtype of the result.
    """
    groups, num = index_GM.shape
    _, channels, size, _ = images_NCHW.shape
    out = torch.empty(groups, num, channels, size, size, dtype=dtype, device=images_NCHW.device)
    theta, color, mask = (tensor.contiguous() for tensor in transform)
    launch(
        augment_triton.forward, (groups * num,), images_NCHW, index_GM.contiguous(), theta, color, mask, scale_C,
        shift_C, out, num, CHANNELS=channels, SIZE=size, **_launch_options(size),
    )  # fmt: skip
    return out


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, theta: Tensor, color: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        groups, num, channels = images.shape[:3]
        index = torch.arange(groups * num, device=images.device).view(groups, num)
        one, zero = (torch.full((channels,), value, device=images.device) for value in (1.0, 0.0))
        ctx.save_for_backward(theta.contiguous(), color.contiguous(), mask.contiguous())
        return take_augmented(images.contiguous().flatten(0, 1), index, (theta, color, mask), one, zero, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        groups, num, channels, size, _ = grads.shape
        out = torch.empty(grads.shape, device=grads.device)
        launch(
            augment_triton.backward, (groups * num,), grads.contiguous(), *ctx.saved_tensors, out, num,
            CHANNELS=channels, SIZE=size, **_launch_options(size, 256, 8),
        )  # fmt: skip
        return out, None, None, None, None


def apply(transform: tuple[Tensor, Tensor, Tensor], images_GNCHW: Tensor, dtype: torch.dtype) -> Tensor:
    """Augment float32 images as `condenset.augment.apply` does, with gradients."""
    out: Tensor = _Apply.apply(images_GNCHW, *transform, dtype)
    return out
