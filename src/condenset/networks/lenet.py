"""LeNet-5 for digits."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_min_size
from condenset.networks.spec import Architecture


class LeNet(Network):
    """LeNet-5 with ReLU and max pooling: two 5x5 convolutions, then linear layers of 120 and 84 units."""

    def __init__(self, *, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        check_min_size("lenet", size, 12)
        padding = 2 if size < 32 else 0  # both 28x28 and 32x32 images end in the 5x5 map of LeNet-5
        side = ((size + 2 * padding - 4) // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * side**2, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(84, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, 84)."""
        features: Tensor = self.features(images)
        return features


ARCHITECTURE = Architecture(
    name="lenet", make=LeNet, title="LeNet", description="LeNet-5 with ReLU and max pooling", default_init=True
)
