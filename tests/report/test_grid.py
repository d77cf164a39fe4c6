from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from condenset import CondensedSet
from condenset.report import grid
from condenset.report.fonts import default_font
from condenset.report.grid import draw_grid, save_grid


def make_set(counts: list[int], channels: int = 3, size: int = 8, ipc: object = 2, soft: bool = False) -> CondensedSet:
    """Return a set whose images of class c have the brightness c / 10."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = (labels[:, None, None, None] / 10).expand(-1, channels, size, size).clone()
    return CondensedSet(
        images=images,
        labels=torch.eye(len(counts))[labels] if soft else labels,
        class_names=tuple(f"class {number}" for number in range(len(counts))),
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        provenance={"method": "random", "recipe": {"ipc": ipc}},
    )


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_grid_has_a_row_per_class_and_a_block_per_set(channels: int, soft: bool) -> None:
    sets = [make_set([1, 1, 1], channels, soft=soft), make_set([3, 2, 3], channels, soft=soft)]
    image = draw_grid(sets)
    pixel_rows = [[image.getpixel((x, y)) for x in range(image.width)] for y in (40, 74, 108)]
    for label, pixels in enumerate(pixel_rows):
        gray = (round(label / 10 * 255),) * 3
        assert pixels.count(gray) >= 32 * (3 if label == 1 else 4)  # tiles of 32 pixels, and perhaps text
    single = draw_grid(sets[:1])
    assert image.width > single.width
    assert image.height == single.height


def test_class_names_are_drawn_on_one_line() -> None:
    broken, plain = (
        draw_grid([dataclasses.replace(make_set([1, 1]), class_names=("a", name))]) for name in ("b\nc\td", "b c d")
    )
    assert broken.tobytes() == plain.tobytes()


def test_long_caption_does_not_widen_the_grid() -> None:
    condensed = dataclasses.replace(make_set([1, 1]), provenance={"method": "m" * 100_000})
    assert draw_grid([condensed]).width < 1000


def test_captions_do_not_overlap() -> None:
    condensed = make_set([1, 1])
    single, double = draw_grid([condensed]), draw_grid([condensed, condensed])
    assert double.width - single.width >= default_font().getlength("random 2")


def test_pixels_outside_the_range_are_clipped() -> None:
    condensed = make_set([1, 1])
    condensed.images[0], condensed.images[1] = -0.5, 1.5
    image = draw_grid([condensed])
    x = image.width - 12 - 40 + 2
    column = [image.getpixel((x, y)) for y in range(32, image.height)]
    assert (0, 0, 0) in column
    assert (255, 255, 255) in column


def test_large_sets_are_cut_and_the_caption_says_so() -> None:
    image = draw_grid([make_set([50] * 60, ipc=50)])
    assert image.height < 60 * 34
    assert image.width < 50 * 34
    assert grid._caption(make_set([50] * 3, ipc=50)) == "random 50, 20 shown"
    assert grid._caption(make_set([2] * 3)) == "random 2"


def test_hidden_classes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    draw_text = grid.ImageDraw.ImageDraw.text

    def record_text(self: object, position: object, text: str, **options: object) -> None:
        texts.append(text)
        draw_text(self, position, text, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(grid.ImageDraw.ImageDraw, "text", record_text)
    complete, cut = (draw_grid([make_set([1] * num)]) for num in (40, 60))
    assert "and 20 more classes" in texts
    assert "class 39" in texts and "class 40" not in texts
    assert not [text for text in texts[: texts.index("class 0")] if text]  # 40 classes are all shown
    assert cut.height > complete.height


def test_font_has_letters_beyond_ascii() -> None:
    font = default_font()
    missing = bytes(font.getmask("\U0010fffd"))
    for letter in "éßñÅжλ":
        assert bytes(font.getmask(letter)) != missing


def test_saved_file_is_png(tmp_path: Path) -> None:
    save_grid([make_set([2, 2])], tmp_path / "deep" / "grid.png")
    with Image.open(tmp_path / "deep" / "grid.png") as image:
        assert image.format == "PNG"
        image.verify()


def test_a_grid_shows_decoded_images() -> None:
    compact = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    fields = {"class_names": ("a", "b"), "mean": (0.5,) * 3, "std": (0.2,) * 3}
    condensed = CondensedSet.decode(compact, labels=torch.tensor([0, 1]), partition=2, **fields)
    decoded = CondensedSet(images=condensed.images, labels=condensed.labels, **fields)
    assert draw_grid([condensed]).tobytes() == draw_grid([decoded]).tobytes()
