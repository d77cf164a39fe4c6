from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from PIL import Image

from condenset import CondensedSet
from condenset.report import grid
from condenset.report.grid import draw_grid, save_grid


def small_set(counts: list[int], channels: int = 3, size: int = 8, ipc: object = 2, soft: bool = False) -> CondensedSet:
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
def test_a_row_a_class_and_a_block_a_set(channels: int, soft: bool) -> None:
    sets = [small_set([1, 1, 1], channels, soft=soft), small_set([3, 2, 3], channels, soft=soft)]
    image = draw_grid(sets)
    tiles = [[image.getpixel((x, y)) for x in range(image.width)] for y in (40, 74, 108)]
    for number, row in enumerate(tiles):
        grey = (round(number / 10 * 255),) * 3
        assert row.count(grey) >= 32 * (3 if number == 1 else 4)  # tiles of 32 pixels, and perhaps of a letter
    alone = draw_grid(sets[:1])
    assert image.width > alone.width
    assert image.height == alone.height


def test_names_are_drawn_on_a_line() -> None:
    broken, plain = (
        draw_grid([dataclasses.replace(small_set([1, 1]), class_names=("a", name))]) for name in ("b\nc\td", "b c d")
    )
    assert broken.tobytes() == plain.tobytes()


def test_a_caption_does_not_decide_how_large_the_picture_is() -> None:
    small = small_set([1, 1])
    long = dataclasses.replace(small, provenance={"method": "m" * 100_000})
    assert draw_grid([long]).width < 1000


def test_captions_do_not_run_into_each_other() -> None:
    one = small_set([1, 1])
    alone, twice = draw_grid([one]), draw_grid([one, one])
    caption = grid._font().getlength("random 2")
    assert twice.width - alone.width >= caption


def test_pixels_beyond_white_and_black_are_clipped_not_wrapped() -> None:
    small = small_set([1, 1])
    small.images[0], small.images[1] = -0.5, 1.5
    image = draw_grid([small])
    x = image.width - 12 - 40 + 2
    column = [image.getpixel((x, y)) for y in range(32, image.height)]
    assert (0, 0, 0) in column
    assert (255, 255, 255) in column


def test_large_sets_are_cut_and_say_so() -> None:
    image = draw_grid([small_set([50] * 60, ipc=50)])
    assert image.height < 60 * 34
    assert image.width < 50 * 34
    assert grid._caption(small_set([50] * 3, ipc=50)) == "random 50, 20 shown"
    assert grid._caption(small_set([2] * 3)) == "random 2"


def test_classes_left_out_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    text = grid.ImageDraw.ImageDraw.text

    def look(self: object, place: object, words: str, **how: object) -> None:
        written.append(words)
        text(self, place, words, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(grid.ImageDraw.ImageDraw, "text", look)
    whole, cut = (draw_grid([small_set([1] * num)]) for num in (40, 60))
    assert "and 20 more classes" in written
    assert "class 39" in written and "class 40" not in written
    assert not [words for words in written[: written.index("class 0")] if words]  # of 40 none is left out
    assert cut.height > whole.height


def test_letters_beyond_ascii_are_no_boxes() -> None:
    font = grid._font()
    boxes = bytes(font.getmask("\U0010fffd"))
    for letter in "éßñÅжλ":
        assert bytes(font.getmask(letter)) != boxes


def test_the_file_is_a_png(tmp_path: Path) -> None:
    save_grid([small_set([2, 2])], tmp_path / "deep" / "grid.png")
    with Image.open(tmp_path / "deep" / "grid.png") as image:
        assert image.format == "PNG"
        image.verify()
