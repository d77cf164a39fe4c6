"""A network in training: its weights as one vector, and the moments of Adam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from condenset import networks
from condenset.engine import rng
from condenset.engine.compile import with_autocast
from condenset.engine.device import ComputeDevice
from condenset.methods.common import adam_step
from condenset.networks import FlatParameters

ADAM_BETAS = (0.0, 0.999)  # of BigGAN; momentum makes adversarial training unstable


class Learner:
    """A network that is trained by Adam. All that changes is in `state`, so that a run can be resumed.

    Args:
        name: Name of the network in the state.
        build: Build the network.
        seed: Seed of the initial weights.
        compute: Device and precision.
    """

    def __init__(self, name: str, build: Callable[[], nn.Module], seed: int, compute: ComputeDevice) -> None:
        self.name = name
        with networks.seed_global_rng(0, torch.device("cpu")):  # the weights are replaced below
            self.network = build().to(compute.device).train()
        self.layout = FlatParameters(self.network, compute.device)
        key = rng.make_key(seed, "init", name, device=compute.device)
        self.weights_P = self.layout.initialize(rng.flat_uniform(key, 0, self.layout.num))
        self.moments = torch.zeros(2, self.layout.num, device=compute.device)
        self.forward = with_autocast(self._forward, compute)

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes. The statistics of batch norm are computed again after the training."""
        buffers = dict(self.network.named_buffers())
        directions = {f"{self.name}.{key}": value for key, value in buffers.items() if key.endswith("direction")}
        return {self.name: self.weights_P, f"{self.name}_moments": self.moments, **directions}

    def require_grad(self) -> Tensor:
        """Return the weights as a leaf of a graph."""
        return self.weights_P.detach().requires_grad_()

    def _forward(self, weights_P: Tensor, *inputs: Tensor) -> Any:
        return functional_call(self.network, self.layout.unflatten(weights_P, weights_P.dtype), inputs)

    def update(self, gradient_P: Tensor, num_updates: Tensor, lr: Tensor) -> None:
        """Take one step of Adam, given the number of earlier steps."""
        adam_step(self.weights_P, gradient_P, self.moments, num_updates, lr, ADAM_BETAS)


def average_decay(clock: Tensor, decay: float) -> Tensor:
    """Return the decay of a running average: small in the first steps, so that it forgets the initial weights."""
    return ((1.0 + clock) / (10.0 + clock)).clamp(max=decay)


@torch.no_grad()
def load_weights(network: nn.Module, weights_P: Tensor) -> None:
    """Copy a vector of weights into a network."""
    values = FlatParameters(network, weights_P.device).unflatten(weights_P, torch.float32)
    for name, parameter in network.named_parameters():
        parameter.copy_(values[name])
