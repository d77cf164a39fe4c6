"""A trained network with its classes and its normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from condenset.data.class_selection import select_classes
from condenset.data.image_data import ImageData, check_image_data
from condenset.data.reading.arrays import as_pixels
from condenset.data.transform import normalize
from condenset.engine.defaults import torch_defaults
from condenset.errors import UserError, check, check_type
from condenset.training.class_matching import warn_about_empty_classes
from condenset.training.model import max_test_batch


class Classifier(nn.Module):
    """Map pixels (N, C, H, W), uint8 or floats in 0..1, to logits (N, K). Normalisation is included.

    The module is in evaluation mode.

    Args:
        network: The network, which expects (pixels - mean) / std.
        class_names: The names of the K outputs.
        mean: The mean per channel.
        std: The standard deviation per channel.
        size: The required image size. None: the network decides.
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
        """Return the logits of pixels on the device of the network."""
        check_type(pixels_NCHW, Tensor, "pixels must be a tensor")
        shape = tuple(pixels_NCHW.shape)
        self._check_shape(shape if len(shape) == 4 else (), shape)
        if pixels_NCHW.dtype == torch.uint8:
            pixels_NCHW = pixels_NCHW.float() / 255
        check(pixels_NCHW.is_floating_point(), "pixels must be uint8, or floats in 0..1", str(pixels_NCHW.dtype))
        logits: Tensor = self.network(normalize(pixels_NCHW, self.mean, self.std))
        return logits

    @torch_defaults()
    def predict(self, images: Any) -> list[str]:
        """Return the class name of each image. Images are arrays as `from_arrays` takes them, or ImageData."""
        images = images.images if isinstance(images, ImageData) else images
        pixels = as_pixels(images)
        self._check_shape(pixels.shape, tuple(np.shape(images)))
        return [self.class_names[label] for label in self._predict_labels(torch.from_numpy(pixels.copy())).tolist()]

    @torch_defaults()
    def accuracy(self, test_set: ImageData | None) -> float:
        """Return the fraction of test images classified correctly, among the classes that the network has."""
        selected = select_test_images(test_set, self.class_names)
        return float((self._predict_labels(selected.images) == selected.labels).float().mean())

    def _check_shape(self, shape: tuple[int, ...], original_shape: tuple[int, ...]) -> None:
        """Check the shape (N, C, H, W) of images; `original_shape` is that of the caller's array, for the message."""
        channels, hint = len(self.mean), ""
        if len(original_shape) == 3:
            is_one_image = channels in (original_shape[0], original_shape[-1])
            hint = "; pass one image as image[None]" if is_one_image else "; pass grey images as images[:, None]"
        expected = (channels, *((self.size, self.size) if self.size else shape[2:]))
        if shape[1:] != expected:
            sides = f"{self.size}, {self.size}" if self.size else "H, W"
            raise UserError(f"images must have the shape (N, {channels}, {sides}), but got {original_shape}{hint}")

    @torch.no_grad()
    def _predict_labels(self, images_NCHW: Tensor) -> Tensor:
        """Return the (N,) labels of uint8 images, on the CPU."""
        device = next(self.network.parameters()).device
        batches = images_NCHW.split(max_test_batch(images_NCHW.shape[-1]))
        labels = [self(batch.to(device)).argmax(1).cpu() for batch in batches]
        return torch.cat(labels) if labels else torch.zeros(0, dtype=torch.int64)


def select_test_images(test_set: ImageData | None, class_names: Sequence[str]) -> ImageData:
    """Return the test images of these classes, with labels in this order. Warn about classes without test images."""
    check_image_data("test_set", test_set, "test")
    assert test_set is not None
    selected = select_classes(test_set, class_names)
    warn_about_empty_classes(selected)
    return selected
