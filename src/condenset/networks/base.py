"""The base class of the built-in networks: an embedding, and a linear classifier on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from condenset.errors import UserError


class Network(nn.Module, ABC):
    """A classifier of images (N, C, H, W). `embed` computes the input of the final linear layer."""

    classifier: nn.Linear

    @property
    def num_features(self) -> int:
        """The length of the embedding."""
        return self.classifier.in_features

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to their embedding (N, F)."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, K). Subclasses do not override this."""
        logits: Tensor = self.classifier(self.embed(images))
        return logits


def padded_size(size: int) -> int:
    """Return the side of the first feature map: 28x28 images are padded to 32x32."""
    return 32 if size == 28 else size


def check_min_size(network: str, size: int, minimum: int) -> None:
    """Raise a UserError unless the first feature map is large enough for the network."""
    if padded_size(size) < minimum:
        raise UserError(f"{network} needs images of at least {minimum}x{minimum}, but got {size}x{size}")
