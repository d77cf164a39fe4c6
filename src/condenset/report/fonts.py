"""Fonts for text in any script: installed fonts that have the glyphs, or another text if there is none."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import ImageFont, features

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT_SIZE = 11  # pixels
DEFAULT_FAMILY = "DejaVu Sans"
BOX_FONTS = ("lastresort", "last resort", "blank", "fallback")  # fonts that draw a box or nothing for every character
MISSING = "?"


@functools.cache
def load_font(text: str) -> ImageFont.FreeTypeFont | None:
    """Return a font that has all characters of a text, or None if no installed font has them."""
    if any(map(_needs_shaping, text)) and not features.check("raqm"):  # without it, letters have a wrong order
        return None
    for path in _font_paths():
        if _characters(path).issuperset(_visible_characters(text)):
            try:
                return ImageFont.truetype(path, FONT_SIZE)
            except OSError:  # a font of bitmaps of another size
                continue
    return None


def default_font() -> ImageFont.FreeTypeFont:
    """Return the font of Matplotlib; the font of Pillow lacks letters such as é."""
    return ImageFont.truetype(_default_path(), FONT_SIZE)


def displayable_names(names: Sequence[str]) -> list[str]:
    """Return the names of classes, with the index of the class in place of a name that no installed font can draw."""
    return [name if load_font(name) else str(index) for index, name in enumerate(names)]


def choose_chart_fonts(figure: Figure) -> None:
    """Give every text of a chart fonts that have its characters. Characters that no font has become `?`."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        letters = _visible_characters(text.get_text()) - _characters(_default_path())
        if not letters:
            continue
        paths = {letter: _path_with(letter) for letter in sorted(letters)}
        missing = {letter for letter, path in paths.items() if path is None}
        text.set_text("".join(MISSING if letter in missing else letter for letter in text.get_text()))
        text.set_fontfamily([DEFAULT_FAMILY, *dict.fromkeys(_family(path) for path in paths.values() if path)])


def _needs_shaping(letter: str) -> bool:
    """Return whether a letter is written from right to left, as in Arabic, or moves in its word, as in Hindi."""
    return unicodedata.bidirectional(letter) in ("R", "AL") or unicodedata.category(letter) == "Mc"


def _visible_characters(text: str) -> set[str]:
    return {letter for letter in text if not letter.isspace()}


def _path_with(letter: str) -> Path | None:
    return next((path for path in _font_paths() if letter in _characters(path)), None)


def _default_path() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


@functools.cache
def _font_paths() -> list[Path]:
    """Return the files of installed fonts: the default, then regular styles before others, sorted by name."""
    from matplotlib.font_manager import fontManager

    entries = [entry for entry in fontManager.ttflist if not any(word in entry.name.lower() for word in BOX_FONTS)]
    entries.sort(key=lambda entry: (entry.style != "normal", entry.weight not in (400, "normal"), entry.name))
    return list(dict.fromkeys([_default_path(), *(Path(entry.fname) for entry in entries)]))


@functools.cache
def _characters(path: Path) -> frozenset[str]:
    """Return the characters that a font has."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError):  # it is damaged, or has been removed
        return frozenset()


def _family(path: Path) -> str:
    from matplotlib.ft2font import FT2Font

    return str(FT2Font(path).family_name)
