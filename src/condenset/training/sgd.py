"""SGD with momentum and weight decay.

Shapes: P parameters of a network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from condenset import kernels
from condenset.kernels.sgd import sgd_step


@torch.no_grad()
def update_weights(
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
    """Update weights and their velocity in place; add 1 to the clock and `batch_size` to the position."""
    if kernels.available(weights_P):
        state = (weights_P, velocity_P, gradient_P, lr, clock, position)
        sgd_step(*state, batch_size, momentum=momentum, weight_decay=weight_decay)
        return
    velocity_P.mul_(momentum).add_(gradient_P.add(weights_P, alpha=weight_decay))
    weights_P.sub_(lr * velocity_P)
    clock += 1
    position += batch_size
