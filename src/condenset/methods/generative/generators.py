"""Generators: networks that map random latents and a class to images.

Shapes: N images in total, K classes, I images per class, Z numbers of a latent, F pixels of an image.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from condenset.engine import rng
from condenset.methods.generative.layers import SpectralConv2d, SpectralLinear, UpBlock, to_channels_last

LATENT_SIZE = 64
MIN_SIZE = 4  # pixels of the first map
NUM_HIDDEN_LAYERS = 3  # of fully connected generators
IMAGES_PER_PASS = 512  # when a set is drawn


def count_doublings(size: int) -> int:
    """Return how often a generator doubles its first map, which has 4 to 7 pixels: 8, 28, 32 and 64 need 1, 2, 3, 4."""
    return max(0, int(math.log2(max(1, size / MIN_SIZE))))


class ImageGenerator(nn.Module, ABC):
    """A network from which a set is drawn.

    Args:
        mean, std: Normalisation of the images. Pixels are between 0 and 1 before it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32)[:, None, None])

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return normalised images of pixels between 0 and 1."""
        images: Tensor = (pixels - self.mean) / self.std
        return images

    @staticmethod
    @abstractmethod
    def sample_latents(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
        """Return (S, num, Z) random latents."""

    @abstractmethod
    def draw(self, latents_KIZ: Tensor) -> Tensor:
        """Return (K, I, C, H, W) normalised images of all classes."""


class ConvGenerator(ImageGenerator):
    """A class-conditional generator of residual blocks, as in BigGAN (Brock et al., 2019) for small images.

    Args:
        channels: Channels of the images.
        size: Image size. Sizes that doubling cannot reach are cropped from the next larger one.
        num_classes: Number of classes.
        width: Channels of the maps.
        mean, std: Normalisation of the images. Pixels are between 0 and 1 before it.
        spectral: Divide the weights by their spectral norm, which steadies the training against a discriminator.
    """

    def __init__(
        self,
        *,
        channels: int,
        size: int,
        num_classes: int,
        width: int,
        mean: Sequence[float],
        std: Sequence[float],
        spectral: bool = True,
    ) -> None:
        super().__init__(mean, std)
        conv, linear = (SpectralConv2d, SpectralLinear) if spectral else (nn.Conv2d, nn.Linear)
        num_blocks = count_doublings(size)
        self.size, self.width, self.num_classes = size, width, num_classes
        self.first_size = -(-size // 2**num_blocks)
        self.first = linear(LATENT_SIZE + num_classes, width * self.first_size**2)
        self.blocks = nn.ModuleList([UpBlock(width, width, num_classes, conv) for _ in range(num_blocks)])
        self.norm = nn.BatchNorm2d(width)
        self.last = conv(width, channels, 3, padding=1)

    def forward(self, latents_NZ: Tensor, labels_N: Tensor) -> Tensor:
        """Return (N, C, H, W) normalised images of the given classes, in float32."""
        classes_NK = F.one_hot(labels_N, self.num_classes).to(latents_NZ.dtype)
        maps = self.first(torch.cat((latents_NZ, classes_NK), dim=1))
        maps = maps.view(-1, self.width, self.first_size, self.first_size)
        maps = to_channels_last(maps)
        for block in self.blocks:
            maps = block(maps, classes_NK)
        maps = self.last(F.relu(self.norm(maps))).contiguous()
        pixels = torch.tanh(maps.to(self.mean.dtype)) / 2 + 0.5
        return self.normalize(pixels[:, :, : self.size, : self.size])

    @staticmethod
    def sample_latents(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
        """Return (S, num, Z) standard normal latents."""
        return rng.normal(key, step, streams_S, num * LATENT_SIZE).view(-1, num, LATENT_SIZE)

    @torch.no_grad()
    def draw(self, latents_KIZ: Tensor) -> Tensor:
        """Return (K, I, C, H, W) images of all classes."""
        labels_N = torch.arange(len(latents_KIZ), device=latents_KIZ.device).repeat_interleave(latents_KIZ.shape[1])
        parts = zip(latents_KIZ.flatten(0, 1).split(IMAGES_PER_PASS), labels_N.split(IMAGES_PER_PASS), strict=True)
        images_NCHW = torch.cat([self(latents, labels) for latents, labels in parts])
        images_KICHW: Tensor = images_NCHW.unflatten(0, latents_KIZ.shape[:2])
        return images_KICHW


class ClassGenerators(ImageGenerator):
    """One fully connected generator per class, with uniform latents, as in Li et al. (2015).

    Args:
        image_shape: Channels, height and width of the images.
        num_classes: Number of classes.
        width: Units of the hidden layers.
        mean, std: Normalisation of the images. Pixels are between 0 and 1 before it.
    """

    def __init__(
        self,
        *,
        image_shape: tuple[int, int, int],
        num_classes: int,
        width: int,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        super().__init__(mean, std)
        self.image_shape = image_shape
        sizes = (LATENT_SIZE, *(width for _ in range(NUM_HIDDEN_LAYERS)), math.prod(image_shape))
        self.layer_sizes = [(num_in, num_out) for num_in, num_out in itertools.pairwise(sizes)]
        self.weights_KP = nn.Parameter(torch.zeros(num_classes, sum((i + 1) * o for i, o in self.layer_sizes)))

    def initialize(self, uniform_KP: Tensor) -> Tensor:
        """Return (K, P) initial weights from uniform numbers in [0, 1).

        He's rule for the layers before a ReLU keeps the spread of the latents. With PyTorch's default the images hardly
        depend on the latents, and MMD then trains generators that draw the same few images again and again.
        """
        parts = []
        for number, (num_in, num_out) in enumerate(self.layer_sizes):
            is_last = number == len(self.layer_sizes) - 1
            parts.append(torch.full((num_in * num_out,), math.sqrt((1 if is_last else 6) / num_in)))
            parts.append(torch.full((num_out,), 1 / math.sqrt(num_in)))
        initial: Tensor = (2 * uniform_KP - 1) * torch.cat(parts).to(uniform_KP.device)
        return initial

    def generate(self, weights_KP: Tensor, latents_KIZ: Tensor) -> Tensor:
        """Return (K, I, F) normalised images of classes with the given weights."""
        values, position = latents_KIZ, 0
        for number, (num_in, num_out) in enumerate(self.layer_sizes):
            matrix_KNM = weights_KP[:, position : position + num_in * num_out].unflatten(1, (num_in, num_out))
            position += num_in * num_out
            bias_K1M = weights_KP[:, None, position : position + num_out]
            position += num_out
            values = torch.baddbmm(bias_K1M, values if number == 0 else F.relu(values), matrix_KNM)
        pixels = torch.sigmoid(values.to(self.mean.dtype)).unflatten(2, self.image_shape)
        return self.normalize(pixels).flatten(2)

    @staticmethod
    def sample_latents(key: Tensor, step: int | Tensor, streams_S: Tensor, num: int) -> Tensor:
        """Return (S, num, Z) latents, uniform in ±1."""
        return 2 * rng.uniform(key, step, streams_S, num * LATENT_SIZE).view(-1, num, LATENT_SIZE) - 1

    @torch.no_grad()
    def draw(self, latents_KIZ: Tensor) -> Tensor:
        """Return (K, I, C, H, W) images of all classes."""
        images = [
            self.generate(weights[None], latents[None])[0]
            for weights, latents in zip(self.weights_KP, latents_KIZ, strict=True)
        ]
        images_KICHW: Tensor = torch.stack(images).unflatten(2, self.image_shape)
        return images_KICHW
