"""The base of every network: an embedding, and a linear classifier on it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from condenset.errors import UserError


class Network(nn.Module, ABC):
    """A classifier of (N, C, H, W) images: `embed` gives what enters its final linear layer."""

    classifier: nn.Linear

    @property
    def num_features(self) -> int:
        """The length of the embedding."""
        return self.classifier.in_features

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, F)."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, K) logits; no network overrides this."""
        logits: Tensor = self.classifier(self.embed(images))
        return logits


def padded(size: int) -> int:
    """The side of the first map: 28x28 images get a border that makes it 32x32."""
    return 32 if size == 28 else size


def check_size(network: str, size: int, minimum: int) -> None:
    """Raise `NETWORK needs images of at least …, but got …` where the first map is too small."""
    if padded(size) < minimum:
        raise UserError(f"{network} needs images of at least {minimum}x{minimum}, but got {size}x{size}")
