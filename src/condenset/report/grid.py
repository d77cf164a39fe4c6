"""Draw the images of condensed sets in one grid: a row per class, a block per set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from condenset.data.condensed_set import CondensedSet
from condenset.data.ipc import format_ipc
from condenset.io.files import write_file
from condenset.report.fonts import default_font, displayable_names, load_font
from condenset.runs.snapshots import hard_labels

MAX_COLUMNS, MAX_ROWS = 20, 40  # per set, so that a grid fits a screen
MIN_TILE_SIZE = 32  # pixels; smaller images are enlarged by a whole factor
GAP, MARGIN, LINE_HEIGHT = 2, 12, 18  # pixels
MAX_NAME_LENGTH = 18


def save_grid(sets: Sequence[CondensedSet], path: Path) -> None:
    """Write the grid as PNG."""
    buffer = io.BytesIO()
    draw_grid(sets).save(buffer, "PNG")
    write_file(path, buffer.getvalue())


def draw_grid(sets: Sequence[CondensedSet], captions: Sequence[str] = ()) -> Image.Image:
    """Draw sets of one dataset next to each other, with the class names at the left.

    Args:
        sets: The sets.
        captions: Captions of the sets. Empty: method and number of images per class.
    """
    captions = captions or [_caption(condensed) for condensed in sets]
    names = displayable_names([shorten_name(name) for name in sets[0].class_names[:MAX_ROWS]])
    fonts = [load_font(name) or default_font() for name in names]
    blocks = [_rows(condensed, len(names)) for condensed in sets]
    font = default_font()
    size = sets[0].images.shape[-1]
    tile_size = size * max(1, -(-MIN_TILE_SIZE // size))
    stride = tile_size + GAP
    num_columns = [max(map(len, rows)) for rows in blocks]
    block_widths = [
        max(stride * columns, int(font.getlength(caption)))
        for columns, caption in zip(num_columns, captions, strict=True)
    ]
    num_hidden = sets[0].num_classes - len(names)
    footer = f"and {num_hidden} more classes" if num_hidden else ""
    left = MARGIN + int(max(font.getlength(name) for font, name in zip(fonts, names, strict=True))) + 8
    top = MARGIN + LINE_HEIGHT
    bottom = top + len(names) * stride
    width = max(left + sum(block_widths) + MARGIN * len(sets), 2 * MARGIN + int(font.getlength(footer)))
    canvas = Image.new("RGB", (width, bottom + (LINE_HEIGHT if footer else 0) + MARGIN), "white")
    pen = ImageDraw.Draw(canvas)
    pen.text((MARGIN, bottom + 2), footer, fill="black", font=font)
    for row, (name, name_font) in enumerate(zip(names, fonts, strict=True)):
        pen.text((MARGIN, top + row * stride + tile_size / 2), name, fill="black", font=name_font, anchor="lm")
    x = left
    for caption, rows, block_width in zip(captions, blocks, block_widths, strict=True):
        pen.text((x, MARGIN), caption, fill="black", font=font)
        for row, images in enumerate(rows):
            for column, image in enumerate(images):
                canvas.paste(_tile(image, tile_size), (x + column * stride, top + row * stride))
        x += block_width + MARGIN
    return canvas


def _rows(condensed: CondensedSet, num_classes: int) -> list[NDArray[np.uint8]]:
    """Return (N, H, W, C) pixels of the first images of each of the first classes."""
    labels = hard_labels(condensed.labels)
    return [_to_pixels(condensed.images[labels == label][:MAX_COLUMNS]) for label in range(num_classes)]


def _to_pixels(images_NCHW: Tensor) -> NDArray[np.uint8]:
    """Return (N, H, W, C) pixels. The images of a row are converted at once, which is faster than one by one."""
    pixels: NDArray[np.uint8] = (images_NCHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return pixels


def _tile(pixels_HWC: NDArray[np.uint8], size: int) -> Image.Image:
    image = Image.fromarray(pixels_HWC[:, :, 0] if pixels_HWC.shape[2] == 1 else pixels_HWC).convert("RGB")
    return image.resize((size, size), Image.Resampling.NEAREST)


def _caption(condensed: CondensedSet) -> str:
    recipe = condensed.provenance.get("recipe", {})
    caption = shorten_name(f"{condensed.provenance.get('method', '')} {format_ipc(recipe.get('ipc', ''))}".strip())
    caption = caption if load_font(caption) else ascii(caption)
    is_complete = int(hard_labels(condensed.labels).bincount().max()) <= MAX_COLUMNS
    return caption if is_complete else f"{caption}, {MAX_COLUMNS} shown"


def shorten_name(name: str) -> str:
    """Return a name of at most 18 characters without control characters."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)  # Pillow cannot measure line breaks
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"
