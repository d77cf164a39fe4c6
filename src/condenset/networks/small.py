"""LeNet, the small AlexNet and the MLP, for digits, dataset distillation and quick experiments."""

from __future__ import annotations

from torch import Tensor, nn

from condenset.networks.base import Network, check_size


class LeNet(Network):
    """LeNet-5 with ReLU and max pooling: two 5x5 convolutions, then linear layers of 120 and 84."""

    def __init__(self, *, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        check_size("lenet", size, 12)
        padding = 2 if size < 32 else 0  # 28x28 and 32x32 both end in the classic 5x5 map
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
        """(N, C, H, W) -> (N, 84)."""
        features: Tensor = self.features(images)
        return features


class SmallAlexNet(Network):
    """Two 5x5 convolutions of 64, each with ReLU and 3x3 max pooling at every other pixel, then linear 384 and 192.

    The AlexNet for CIFAR-10 in which dataset distillation was published; without its response norm, whose
    constants leave activations almost as they are.
    """

    def __init__(self, *, channels: int, size: int, num_classes: int) -> None:
        super().__init__()
        check_size("alexnet_small", size, 4)
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
        """(N, C, H, W) -> (N, 192)."""
        features: Tensor = self.features(images)
        return features


class MLP(Network):
    """Two hidden layers of `width` units with ReLU."""

    def __init__(self, *, channels: int, size: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * size**2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.classifier = nn.Linear(width, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, width)."""
        features: Tensor = self.features(images)
        return features
