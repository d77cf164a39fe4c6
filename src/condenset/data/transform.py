"""Map batches of pixels to network inputs: normalisation, then the training augmentation."""

from __future__ import annotations

import torch
from torch import Tensor

from condenset import augment
from condenset.data.image_data import normalize
from condenset.errors import check


class PixelTransform:
    """Normalise and augment batches of pixels, as `cs.evaluate` does. `CondensedSet.transform` returns one.

    Args:
        mean, std: Normalisation constants per channel.
        strategy: The augmentation strategy, such as "color_crop"; "none" for normalisation alone.
        allow_hflip: Allow horizontal flips.
        generator: Source of the random numbers; None for PyTorch's global generator.
    """

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        strategy: str,
        *,
        allow_hflip: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        self.mean, self.std, self.generator = mean, std, generator
        self.operations = augment.parse_strategy(strategy, allow_hflip=allow_hflip)

    def __call__(self, pixels_NCHW: Tensor) -> Tensor:
        """Return (N, C, H, W) float network inputs.

        Args:
            pixels_NCHW: Floats, nominally in 0..1, or uint8.

        Raises:
            UserError: The pixels have another shape.
        """
        shape, channels = tuple(pixels_NCHW.shape), len(self.mean)
        is_batch = len(shape) == 4 and shape[1] == channels and shape[2] == shape[3]
        check(is_batch, f"pixels must be a batch of square images of shape (N, {channels}, H, W)", shape)
        pixels = pixels_NCHW.float() / 255 if pixels_NCHW.dtype == torch.uint8 else pixels_NCHW
        images = normalize(pixels, self.mean, self.std)
        if not self.operations or not len(images):
            return images
        uniform_NU = self._draw_uniforms(len(images)).to(images.device)
        transform = augment.sample_transform(uniform_NU, self.operations, images.shape[-1], shared=True)
        return augment.apply(transform, images[:, None], images.dtype)[:, 0]

    def _draw_uniforms(self, num: int) -> Tensor:
        device = self.generator.device if self.generator is not None else torch.device("cpu")
        return torch.rand(num, augment.NUM_UNIFORMS, generator=self.generator, device=device)

    def __repr__(self) -> str:
        strategy = "_".join(self.operations) or "none"
        return f"PixelTransform(mean={self.mean}, std={self.std}, augment={strategy!r})"
