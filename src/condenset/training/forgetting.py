"""Count how often a network forgets the images that it trains on."""

from __future__ import annotations

import torch
from torch import Tensor


class ForgettingCounter:
    """Count how often each image changes from right to wrong during training (Toneva et al., 2019).

    All tensors stay on the device, so that a captured training step can update them.
    """

    def __init__(self, num_images: int, device: torch.device) -> None:
        self.events_N = torch.zeros(num_images, dtype=torch.int64, device=device)
        self.right_N = torch.zeros(num_images, dtype=torch.bool, device=device)  # at the last update
        self.learned_N = torch.zeros(num_images, dtype=torch.bool, device=device)  # right at least once

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that `update` changes."""
        return {"events": self.events_N, "right": self.right_N, "learned": self.learned_N}

    @property
    def counts_N(self) -> Tensor:
        """(N,) events per image. An image that was never learned has a higher count than all that were."""
        return torch.where(self.learned_N, self.events_N, self.events_N.max() + 1)

    def reset(self) -> None:
        """Forget all updates."""
        for tensor in self.state.values():
            tensor.zero_()

    @torch.no_grad()
    def update(self, index: Tensor, right: Tensor) -> None:
        """Record which of the images at the distinct positions `index` are classified correctly."""
        self.events_N.index_add_(0, index, (self.right_N[index] & ~right).long())
        self.learned_N.index_copy_(0, index, self.learned_N[index] | right)
        self.right_N.index_copy_(0, index, right)
