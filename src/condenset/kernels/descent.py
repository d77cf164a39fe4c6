"""A step of gradient descent with momentum and weight decay in one launch, where plain operations take seven."""

import torch
from torch import Tensor

from condenset.kernels.runtime import jit, tl, triton

BLOCK = 1024


@jit
def _descend(weights, velocity, gradient, lr, clock, position, total, num, momentum, decay, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    weight = tl.load(weights + place, mask=inside, other=0.0)
    slope = tl.load(gradient + place, mask=inside, other=0.0) + decay * weight
    speed = momentum * tl.load(velocity + place, mask=inside, other=0.0) + slope
    tl.store(velocity + place, speed, mask=inside)
    tl.store(weights + place, weight - tl.load(lr) * speed, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(clock, tl.load(clock) + 1)
        tl.store(position, tl.load(position) + num)


@torch.no_grad()
def descend(
    weights_P: Tensor,
    velocity_P: Tensor,
    gradient_P: Tensor,
    lr: Tensor,
    clock: Tensor,
    position: Tensor,
    num: int,
    *,
    momentum: float,
    decay: float,
) -> None:
    """Move float32 weights and their velocity in place; the clock ticks, and the position moves on by `num` images."""
    total = len(weights_P)
    _descend[(triton.cdiv(total, BLOCK),)](
        weights_P, velocity_P, gradient_P.contiguous(), lr, clock, position, total, num, momentum, decay, BLOCK=BLOCK
    )
