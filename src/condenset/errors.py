"""Errors that are the user's to mend: one line with the rule, the value given and the choices."""

from __future__ import annotations

import difflib
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its one line and exits with 2."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())  # a file's name may hold a line break, or what a terminal obeys
        super().__init__("".join(each if each.isprintable() else ascii(each)[1:-1] for each in line))


def check(holds: bool, rule: str, value: object) -> None:
    """Raise `RULE, but got VALUE` unless the rule holds."""
    if not holds:
        raise UserError(f"{rule}, but got {written(value)}")


def written(value: object) -> str:
    """The value as Python writes it, if it does."""
    try:
        return repr(value)
    except ValueError:  # of whole numbers it writes a few thousand digits
        return "a number of thousands of digits"


def check_kind(value: object, kinds: type | tuple[type, ...], rule: str) -> None:
    """Raise `RULE, but got WHAT` unless the value is of one of the kinds."""
    if not isinstance(value, kinds):
        raise UserError(f"{rule}, but got {told(value)}")


def listed(names: Sequence[str], most: int) -> str:
    """The first of the names, quoted, in a line."""
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path whose bytes are no text: it could neither be written down nor printed."""
    try:
        text = os.path.abspath(path)
    except OSError:  # the folder this process is in has gone
        text = os.fspath(path)
    check(text == text.encode("utf-8", "replace").decode(), "a path must be text in UTF-8", text)


def told(value: object) -> str:
    """A value of any kind in few words: of what may be long to print, its kind."""
    if value is None or isinstance(value, str | int | float):
        return written(value)
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def is_whole(value: object) -> bool:
    """Whether it is a whole number, Python's or NumPy's; true and false are none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a finite number of Python's that a float can hold; true and false are none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def whole(name: str, value: Any, least: int | None = None) -> int:
    """The value as an int; raise `NAME must be a whole number, LEAST or more, but got VALUE` unless it is one."""
    rule = f"{name} must be a whole number" + ("" if least is None else f", {least} or more")
    check(is_whole(value) and (least is None or value >= least), rule, value)
    check(int(value).bit_length() <= 64, f"{name} must be a whole number of at most 64 bits", value)
    return int(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `NAME must be one of …, but got VALUE` with the nearest choice, unless value is one of them."""
    names = list(choices)
    if value in names:
        return
    message = f"{name} must be one of {', '.join(names)}, but got {written(value)}"
    text = value if isinstance(value, str) else written(value)
    near = difflib.get_close_matches(text.lower(), names, n=1)
    raise UserError(message + (f"; did you mean {near[0]!r}?" if near else ""))


def one_line(error: BaseException) -> str:
    """An error's text without line breaks, or its type if it has none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
