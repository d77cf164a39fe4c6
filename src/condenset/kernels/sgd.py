"""A step of SGD with momentum and weight decay in one launch instead of seven."""

import torch
from torch import Tensor

from condenset.kernels.runtime import jit, launch, tl, triton

BLOCK_SIZE = 1024


@jit
def _sgd_step(
    weights, velocity, gradient, lr, clock, position, num_weights, batch_size, momentum, decay, BLOCK: tl.constexpr
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < num_weights
    weight = tl.load(weights + index, mask=inside, other=0.0)
    grad = tl.load(gradient + index, mask=inside, other=0.0) + decay * weight
    new_velocity = momentum * tl.load(velocity + index, mask=inside, other=0.0) + grad
    tl.store(velocity + index, new_velocity, mask=inside)
    tl.store(weights + index, weight - tl.load(lr) * new_velocity, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(clock, tl.load(clock) + 1)
        tl.store(position, tl.load(position) + batch_size)


@torch.no_grad()
def sgd_step(
    weights_P: Tensor,
    velocity_P: Tensor,
    gradient_P: Tensor,
    lr: Tensor,
    clock: Tensor,
    position: Tensor,
    batch_size: int,
    *,
    momentum: float,
    weight_decay: float,
) -> None:
    """Update float32 weights and their velocity in place; add 1 to the clock and `batch_size` to the position."""
    num_weights = len(weights_P)
    launch(
        _sgd_step, (triton.cdiv(num_weights, BLOCK_SIZE),), weights_P, velocity_P, gradient_P.contiguous(), lr, clock,
        position, num_weights, batch_size, momentum, weight_decay, BLOCK=BLOCK_SIZE,
    )  # fmt: skip
