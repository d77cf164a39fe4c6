"""The images of condensed sets as one picture: a row for each of the first classes, a block a set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from condenset.files import write_file
from condenset.types import CondensedSet

MAX_COLUMNS, MAX_ROWS = 20, 40  # of a set: a picture is for looking at
TILE = 32  # pixels that a small image is enlarged to, at least
GAP, MARGIN = 2, 12


def save_grid(sets: Sequence[CondensedSet], path: Path) -> None:
    """Write the picture as PNG, whole or not at all."""
    out = io.BytesIO()
    draw_grid(sets).save(out, "PNG")
    write_file(path, out.getvalue())


def draw_grid(sets: Sequence[CondensedSet], captions: Sequence[str] = ()) -> Image.Image:
    """Sets of one dataset side by side, their classes in rows with the names at the left.

    captions: of the sets, in place of their method and number of images a class.
    """
    captions = captions or [_caption(small) for small in sets]
    names = sets[0].class_names[:MAX_ROWS]
    side = sets[0].images.shape[-1]
    tile = side * max(1, -(-TILE // side))
    font = _font()
    left = MARGIN + int(max(font.getlength(short(name)) for name in names)) + 8
    rows = [_rows(small, len(names)) for small in sets]
    step = tile + GAP
    widths = [
        max(step * max(len(row) for row in block), int(font.getlength(caption)))
        for caption, block in zip(captions, rows, strict=True)
    ]
    width = left + sum(widths) + MARGIN * len(sets)
    top = MARGIN + 18
    bottom, left_out = top + len(names) * step, sets[0].num_classes - len(names)
    told = f"and {left_out} more classes" if left_out else ""
    width = max(width, 2 * MARGIN + int(font.getlength(told)))
    canvas = Image.new("RGB", (width, bottom + (18 if told else 0) + MARGIN), "white")
    pen = ImageDraw.Draw(canvas)
    pen.text((MARGIN, bottom + 2), told, fill="black", font=font)
    for number, name in enumerate(names):
        pen.text((MARGIN, top + number * step + tile / 2), short(name), fill="black", font=font, anchor="lm")
    x = left
    for caption, block, block_width in zip(captions, rows, widths, strict=True):
        pen.text((x, MARGIN), caption, fill="black", font=font)
        for number, row in enumerate(block):
            for place, image in enumerate(row):
                canvas.paste(_tile(image, tile), (x + place * step, top + number * step))
        x += block_width + MARGIN
    return canvas


def _rows(small: CondensedSet, num_classes: int) -> list[Tensor]:
    labels = small.labels if small.labels.ndim == 1 else small.labels.argmax(1)
    return [small.images[labels == number][:MAX_COLUMNS] for number in range(num_classes)]


def _tile(image_CHW: Tensor, size: int) -> Image.Image:
    pixels = (image_CHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert("RGB")
    return picture.resize((size, size), Image.Resampling.NEAREST)


def _caption(small: CondensedSet) -> str:
    recipe = small.provenance.get("recipe", {})
    name = short(f"{small.provenance.get('method', '')} {recipe.get('ipc', '')}".strip())
    labels = small.labels if small.labels.ndim == 1 else small.labels.argmax(1)
    return name if int(labels.bincount().max()) <= MAX_COLUMNS else f"{name}, {MAX_COLUMNS} shown"


def _font() -> ImageFont.FreeTypeFont:
    """Matplotlib's own: Pillow's lacks letters that class names have, such as é."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11)


def short(name: str) -> str:
    name = "".join(letter if letter.isprintable() else " " for letter in name)  # a line break cannot be measured
    return name if len(name) <= 18 else name[:17] + "…"
