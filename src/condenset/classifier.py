"""A trained network with all it needs to be asked: its classes and its normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from condenset.data.arrays import as_pixels
from condenset.errors import check
from condenset.train import TEST_BATCH
from condenset.types import ImageData, check_data, normalise, of_classes


class Classifier(nn.Module):
    """(N, C, H, W) pixels, uint8 or floats in 0..1, on its device -> (N, K) logits; in evaluation mode.

    It normalises by itself. network: the bare one, which expects (pixels - mean) / std; class_names: of the K outputs.
    """

    def __init__(
        self, network: nn.Module, class_names: Sequence[str], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        self.network, self.class_names = network, tuple(class_names)
        self.mean, self.std = tuple(mean), tuple(std)
        self.eval()

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        if pixels_NCHW.dtype == torch.uint8:
            pixels_NCHW = pixels_NCHW.float() / 255
        check(pixels_NCHW.is_floating_point(), "pixels must be uint8, or floats in 0..1", str(pixels_NCHW.dtype))
        logits: Tensor = self.network(normalise(pixels_NCHW, self.mean, self.std))
        return logits

    def predict(self, images: Any) -> list[str]:
        """The class of each image, by name; images as `from_arrays` takes them."""
        pixels = as_pixels(images)
        check(pixels.shape[1] == len(self.mean), f"images must have {len(self.mean)} channels", pixels.shape[1])
        return [self.class_names[label] for label in self._labels(torch.from_numpy(pixels.copy())).tolist()]

    def accuracy(self, test: ImageData) -> float:
        """The share of the test images of its classes, which are found by name, that it gets right."""
        check_data("test", test, "test")
        mine = of_classes(test, self.class_names)
        return float((self._labels(mine.images) == mine.labels).float().mean())

    @torch.no_grad()
    def _labels(self, images_NCHW: Tensor) -> Tensor:
        """(N,) on the host, of uint8 images."""
        device = next(self.network.parameters()).device
        parts = images_NCHW.split(TEST_BATCH)
        found = [self(part.to(device)).argmax(1).cpu() for part in parts]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
