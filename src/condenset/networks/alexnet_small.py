"""The small AlexNet of the dataset distillation paper."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_min_size
from condenset.networks.spec import Architecture


class SmallAlexNet(Network):
    """Two 5x5 convolutions with ReLU and 3x3 max pooling of stride 2, then linear layers of 384 and 192 units.

    Dataset distillation was published with this AlexNet for CIFAR-10. The local response normalisation is left out:
    its constants hardly change the activations.
    """

    def __init__(self, *, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        check_min_size("alexnet_small", size, 4)
        side = -(-size // 4)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Conv2d(64, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Flatten(),
            nn.Linear(64 * side**2, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(192, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, 192)."""
        features: Tensor = self.features(images)
        return features


ARCHITECTURE = Architecture(
    name="alexnet_small",
    make=SmallAlexNet,
    title="small AlexNet",
    description="two convolutions with max pooling, then linear layers: the network of dataset distillation",
    default_init=True,
)
