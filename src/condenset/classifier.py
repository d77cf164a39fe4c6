"""A trained network with all it needs to be asked: its classes and its normalisation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from condenset.data.arrays import as_pixels
from condenset.errors import UserError, check, check_kind, listed
from condenset.train import TEST_BATCH
from condenset.types import ImageData, check_data, normalise, of_classes


class Classifier(nn.Module):
    """(N, C, H, W) pixels, uint8 or floats in 0..1, on its device -> (N, K) logits; in evaluation mode.

    It normalises by itself. network: the bare one, which expects (pixels - mean) / std; class_names: of the K outputs;
    size: the side of all images that it can be asked about, None where that is for the network to say.
    """

    def __init__(
        self,
        network: nn.Module,
        class_names: Sequence[str],
        mean: Sequence[float],
        std: Sequence[float],
        size: int | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.network, self.class_names = network, tuple(class_names)
        self.mean, self.std = tuple(mean), tuple(std)
        self.eval()

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        check_kind(pixels_NCHW, Tensor, "pixels must be a tensor")
        shape = tuple(pixels_NCHW.shape)
        self._check(shape if len(shape) == 4 else (), shape)
        if pixels_NCHW.dtype == torch.uint8:
            pixels_NCHW = pixels_NCHW.float() / 255
        check(pixels_NCHW.is_floating_point(), "pixels must be uint8, or floats in 0..1", str(pixels_NCHW.dtype))
        logits: Tensor = self.network(normalise(pixels_NCHW, self.mean, self.std))
        return logits

    def predict(self, images: Any) -> list[str]:
        """The class of each image, by name; images as `from_arrays` takes them, or ImageData."""
        images = images.images if isinstance(images, ImageData) else images
        pixels = as_pixels(images)
        self._check(pixels.shape, tuple(np.shape(images)))
        return [self.class_names[label] for label in self._labels(torch.from_numpy(pixels.copy())).tolist()]

    def accuracy(self, test: ImageData) -> float:
        """The share of the test images of its classes, which are found by name, that it gets right."""
        mine = tested(test, self.class_names)
        return float((self._labels(mine.images) == mine.labels).float().mean())

    def _check(self, found: tuple[int, ...], given: tuple[int, ...]) -> None:
        """Refuse pixels whose shape is not the network's; `given`: as the caller has them."""
        num, hint = len(self.mean), ""
        if len(given) == 3:
            alone = num in (given[0], given[-1])
            hint = "; one image alone is given as image[None]" if alone else "; grey ones are given as images[:, None]"
        wanted = (num, *((self.size, self.size) if self.size else found[2:]))
        if found[1:] != wanted:
            sides = f"{self.size}, {self.size}" if self.size else "H, W"
            raise UserError(f"images must be (N, {num}, {sides}), but got {given}{hint}")

    @torch.no_grad()
    def _labels(self, images_NCHW: Tensor) -> Tensor:
        """(N,) on the host, of uint8 images."""
        device = next(self.network.parameters()).device
        parts = images_NCHW.split(TEST_BATCH)
        found = [self(part.to(device)).argmax(1).cpu() for part in parts]
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)


def tested(test: ImageData, names: Sequence[str]) -> ImageData:
    """The test images of these classes, labelled by their places in `names`; warns of classes that have none."""
    check_data("test", test, "test")
    mine = of_classes(test, names)
    without = [name for name, count in zip(names, mine.class_counts, strict=True) if not count]
    if without:
        told = f"({len(without)} of {len(names)}): {listed(without, 10)}"
        warnings.warn(f"classes without a test image are left out {told}", stacklevel=3)
    return mine
