"""Text in any script: an installed font that has the glyphs, else the index of the class."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib.font_manager import fontManager
from PIL import features

from condenset.report import fonts
from condenset.report.charts import new_chart, save_chart, set_title
from condenset.report.fonts import choose_chart_fonts, default_font, displayable_names, load_font
from condenset.report.grid import draw_grid
from report.test_grid import make_set

NAMES = ["cat", "猫", "\u0642\u0637\u0629", "😀", "𓃠 cat", "한국어"]  # Arabic: cat
ABSENT = "\U000f0001"  # private use, without a glyph in every font


@pytest.fixture
def installed_fonts() -> Iterator[None]:
    """Remove the fonts that a test installs."""
    installed = list(fontManager.ttflist)
    yield
    fontManager.ttflist[:] = installed
    clear_caches()


@pytest.fixture
def han_font(tmp_path: Path, installed_fonts: None) -> str:
    """Install a font that has the letters of 猫 and cat; return the name of its family."""
    install_font(tmp_path / "han.ttf", "Test Han", "猫cat")
    return "Test Han"


def install_font(path: Path, family: str, text: str) -> None:
    """Install a font that draws a triangle for each letter of a text."""
    builder = FontBuilder(1000)
    letters = {ord(letter): f"u{ord(letter)}" for letter in text}
    builder.setupGlyphOrder([".notdef", *letters.values()])
    builder.setupCharacterMap(letters)
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for point in ((500, 0), (250, 700)):
        pen.lineTo(point)
    pen.closePath()
    glyph = pen.glyph()
    builder.setupGlyf({name: glyph for name in (".notdef", *letters.values())})
    builder.setupHorizontalMetrics({name: (600, 0) for name in (".notdef", *letters.values())})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    fontManager.addfont(path)
    clear_caches()


def clear_caches() -> None:
    for function in (fonts.load_font, fonts._font_paths, fonts._characters):
        function.cache_clear()


def test_names_without_a_font_become_the_index() -> None:
    names = displayable_names([*NAMES, ABSENT])
    assert names[0] == "cat"
    assert names[-1] == str(len(NAMES))
    for index, (name, shown) in enumerate(zip(NAMES, names, strict=False)):
        assert shown in (name, str(index))
        font = load_font(shown)
        assert font is not None
        box = bytes(font.getmask(ABSENT))
        assert all(bytes(font.getmask(letter)) != box for letter in shown if letter != " ")


def test_a_font_with_the_glyphs_is_found(han_font: str) -> None:
    font = load_font("猫 cat")
    assert font is not None
    assert font.getname()[0] == han_font
    latin = load_font("cat")
    assert latin is not None
    assert latin.getname()[0] == default_font().getname()[0]


def test_a_font_of_boxes_is_not_used(installed_fonts: None, tmp_path: Path) -> None:
    install_font(tmp_path / "boxes.ttf", "Test Last Resort", ABSENT)
    assert load_font(ABSENT) is None


@pytest.mark.parametrize("text", ["\u0642\u0637\u0629", "\u0939\u093f"])  # Arabic, Hindi
def test_scripts_whose_letters_move_need_raqm(
    text: str, installed_fonts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_font(tmp_path / "font.ttf", "Test Letters", text)
    monkeypatch.setattr(features, "check", lambda feature: feature == "raqm")
    assert load_font(text) is not None
    load_font.cache_clear()
    monkeypatch.setattr(features, "check", lambda feature: False)
    assert load_font(text) is None


def test_grid_shows_the_index_in_place_of_a_box() -> None:
    classes = make_set([1] * len(NAMES))
    given, shown = (
        draw_grid([dataclasses.replace(classes, class_names=tuple(names))])
        for names in (NAMES, displayable_names(NAMES))
    )
    assert given.tobytes() == shown.tobytes()


def test_grid_draws_names_of_other_scripts(han_font: str) -> None:
    by_name, by_index = (
        draw_grid([dataclasses.replace(make_set([1, 1]), class_names=("a", name))]) for name in ("猫", "1")
    )
    assert by_name.tobytes() != by_index.tobytes()


def test_charts_use_fonts_with_the_glyphs(han_font: str, tmp_path: Path) -> None:
    figure, axes = new_chart()
    axes.plot([1], [1], label=f"猫 {ABSENT}")
    legend = figure.legend()
    set_title(figure, " ".join([*NAMES, ABSENT]))
    with warnings.catch_warnings(action="error"):  # such as: glyph missing
        save_chart(figure, tmp_path / "chart.png")
    (text,) = legend.get_texts()
    assert text.get_text() == "猫 ?"
    assert text.get_fontfamily() == ["DejaVu Sans", han_font]


def test_plain_charts_keep_their_font() -> None:
    figure, axes = new_chart()
    axes.set_title("é ± α")
    family = axes.title.get_fontfamily()
    choose_chart_fonts(figure)
    assert axes.title.get_fontfamily() == family
