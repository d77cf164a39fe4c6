"""Many small images in one WebP file, which the page shows piece by piece."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

LOSSLESS = 101  # in place of a quality


@dataclass(frozen=True, eq=False)
class Sprite:
    """Images of one size in a square grid, row by row.

    Attributes:
        images: (N, C, H, W) uint8.
    """

    images: Tensor

    @property
    def columns(self) -> int:
        """The number of images per row."""
        return max(1, math.ceil(math.sqrt(len(self.images))))

    def encode(self, quality: int) -> bytes:
        """Return a WebP file of a quality from 0 to 100, or `LOSSLESS`."""
        num, channels, height, width = self.images.shape
        rows = -(-num // self.columns)
        sheet = self.images.new_zeros((rows * self.columns, channels, height, width))
        sheet[:num] = self.images
        grid = sheet.view(rows, self.columns, channels, height, width).permute(0, 3, 1, 4, 2)
        pixels = grid.reshape(rows * height, self.columns * width, channels).numpy()
        image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).convert("RGB")
        buffer = io.BytesIO()
        # The encoder's effort (`method`, and `quality` of lossless files) is low: more saves a few percent, but takes
        # several times longer.
        options = {"lossless": True, "method": 0, "quality": 0} if quality == LOSSLESS else {"method": 1}
        image.save(buffer, "WEBP", **({"quality": quality} | options))
        return buffer.getvalue()

    def to_json(self, content: bytes) -> dict[str, Any]:
        """Return the encoded sprite for the script of the page."""
        rows = -(-len(self.images) // self.columns)
        return {"source": base64.b64encode(content).decode(), "columns": self.columns, "rows": rows}
