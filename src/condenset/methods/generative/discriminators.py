"""Networks that judge or encode images: the discriminator of a GAN, and the encoder of a VAE."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from condenset.methods.generative.generators import LATENT_SIZE
from condenset.methods.generative.layers import DownBlock, SpectralConv2d, SpectralLinear, to_channels_last

MAX_LAST_SIZE = 8  # pixels of the last map
NUM_LAST_BLOCKS = 2  # that keep the size of the map


class ConvTrunk(nn.Module):
    """Residual blocks that halve the map until it has at most 8 pixels per side, then two that keep its size.

    Attributes:
        width: Channels of the last map.
        size: Side of the last map.
    """

    def __init__(self, *, channels: int, size: int, width: int, conv: type[nn.Conv2d]) -> None:
        super().__init__()
        blocks, self.width = [DownBlock(channels, width, conv, pools=size > 1, first=True)], width
        size = max(1, size // 2)
        while size > MAX_LAST_SIZE:
            blocks.append(DownBlock(width, width, conv, pools=True))
            size //= 2
        blocks += [DownBlock(width, width, conv, pools=False) for _ in range(NUM_LAST_BLOCKS)]
        self.blocks, self.size = nn.Sequential(*blocks), size

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Return the (N, width, size, size) map of images."""
        return F.relu(self.blocks(to_channels_last(images_NCHW)))


class Discriminator(nn.Module):
    """A projection discriminator (Miyato and Koyama, 2018) with spectral norm in all layers but that of the features.

    Args:
        channels: Channels of the images.
        size: Image size.
        num_classes: Number of classes.
        width: Channels of the maps.
        num_features: Number of features, a linear map of the last map's sums over all pixels. None: the sums.
    """

    def __init__(
        self, *, channels: int, size: int, num_classes: int, width: int, num_features: int | None = None
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.trunk = ConvTrunk(channels=channels, size=size, width=width, conv=SpectralConv2d)
        self.output = SpectralLinear(width, 1)
        self.embedding = SpectralLinear(num_classes, width, bias=False)
        self.head = nn.Linear(width, num_features, bias=False) if num_features else nn.Identity()

    def forward(self, images_NCHW: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N,) scores, high for real images of the given classes, and (N, F) features, in float32."""
        sums_NW = self.trunk(images_NCHW).float().sum((2, 3))
        embedding_NW = self.embedding(F.one_hot(labels_N, self.num_classes).to(sums_NW.dtype))
        scores_N = self.output(sums_NW)[:, 0] + (embedding_NW * sums_NW).sum(1)
        return scores_N.float(), self.head(sums_NW).float()


class Encoder(nn.Module):
    """Map images to the mean and the logarithmic variance of their latents."""

    def __init__(self, *, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.trunk = ConvTrunk(channels=channels, size=size, width=width, conv=nn.Conv2d)
        self.output = nn.Linear(width * self.trunk.size**2, 2 * LATENT_SIZE)

    def forward(self, images_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Return (N, Z) means and logarithmic variances, in float32."""
        mean_NZ, log_variance_NZ = self.output(self.trunk(images_NCHW).flatten(1)).float().chunk(2, dim=1)
        return mean_NZ, log_variance_NZ.clamp(-10, 10)
