"""A multilayer perceptron for quick experiments."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network
from condenset.networks.spec import Architecture, Option


class MLP(Network):
    """Two hidden layers of `width` units with ReLU."""

    def __init__(self, *, channels: int, size: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * size**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.classifier = nn.Linear(width, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, width)."""
        features: Tensor = self.features(images)
        return features


ARCHITECTURE = Architecture(
    name="mlp",
    make=MLP,
    title="MLP",
    description="two hidden layers",
    options={"width": Option(128)},
    default_init=True,
)
