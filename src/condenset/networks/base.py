"""The base class of the built-in networks: an embedding, and a linear classifier on top of it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from condenset.errors import UserError
from condenset.networks.block_features import list_features


class Network(nn.Module, ABC):
    """A classifier of images (N, C, H, W). `embed` computes the input of the final linear layer.

    Attributes:
        blocks: Blocks of convolutions, if the network has any.
        classifier: The final linear layer.
        feature_kind: What an embedding without classifier returns: "last", "blocks", "attention" or "unpooled".
    """

    blocks: nn.Sequential
    classifier: nn.Linear
    feature_kind: str = "last"

    @property
    def num_features(self) -> int:
        """The length of the embedding."""
        return self.classifier.in_features

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to their embedding (N, F)."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to logits (N, K). Subclasses do not override this."""
        features = self.embed(images) if self.feature_kind == "last" else torch.cat(self.block_features(images), 1)
        logits: Tensor = self.classifier(features)
        return logits

    def block_features(self, images: Tensor) -> list[Tensor]:
        """Return features (N, F) of every block. Those before a pooling need `kernels.disable_kernels`."""
        maps: list[Tensor] = []
        modules = [
            getattr(block, "activation", block) if self.feature_kind == "unpooled" else block for block in self.blocks
        ]
        hooks = [module.register_forward_hook(lambda module, args, out: maps.append(out)) for module in modules]
        try:
            embedding = self.embed(images)
            assert len(maps) == len(self.blocks), (
                "fused blocks do not call their activation: use kernels.disable_kernels"
            )
            return list_features(self.feature_kind, maps, embedding)
        finally:
            for hook in hooks:
                hook.remove()


def padded_size(size: int) -> int:
    """Return the side of the first feature map: 28x28 images are padded to 32x32."""
    return 32 if size == 28 else size


def check_min_size(network: str, size: int, minimum: int) -> None:
    """Raise a UserError unless the first feature map is large enough for the network."""
    if padded_size(size) < minimum:
        raise UserError(f"{network} needs images of at least {minimum}x{minimum}, but got {size}x{size}")
