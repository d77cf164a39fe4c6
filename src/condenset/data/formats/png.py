"""Encode images as PNG, which takes most of the time of an export."""

from __future__ import annotations

import io
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from condenset.io.progress import show_progress


def encode_images(pixels_NHWC: NDArray[np.uint8]) -> Generator[bytes, None, None]:
    """Yield images of 1 or 3 channels as the contents of PNG files, and show the progress."""
    with show_progress("writing images", len(pixels_NHWC)) as advance:
        for pixels_HWC in pixels_NHWC:
            yield _encode_png(pixels_HWC)
            advance(1)


def _encode_png(pixels_HWC: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else pixels_HWC).save(buffer, "PNG")
    return buffer.getvalue()
