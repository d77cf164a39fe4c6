"""UserError and argument checks: one line with the rule, the value and the valid choices."""

from __future__ import annotations

import difflib
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any


class UserError(ValueError):
    """A mistake that the user can correct. The command line prints its one line and exits with code 2."""

    def __init__(self, message: str) -> None:
        line = " ".join(message.splitlines())  # a file name can contain line breaks and terminal control characters
        super().__init__("".join(char if char.isprintable() else ascii(char)[1:-1] for char in line))


def check(condition: bool, rule: str, value: object) -> None:
    """Raise the UserError `RULE, but got VALUE` unless the condition is true."""
    if not condition:
        raise UserError(f"{rule}, but got {safe_repr(value)}")


def check_type(value: object, types: type | tuple[type, ...], rule: str) -> None:
    """Raise the UserError `RULE, but got VALUE_OR_TYPE` unless the value is an instance of one of the types."""
    if not isinstance(value, types):
        raise UserError(f"{rule}, but got {describe_value(value)}")


def check_int(name: str, value: Any, minimum: int | None = None) -> int:
    """Check that a value is an integer of at most 64 bits and at least `minimum`, and return it as a Python int."""
    rule = f"{name} must be a whole number" + ("" if minimum is None else f", {minimum} or more")
    check(is_int(value) and (minimum is None or value >= minimum), rule, value)
    check(int(value).bit_length() <= 64, f"{name} must be a whole number of at most 64 bits", value)
    return int(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `NAME must be one of …, but got VALUE` with the nearest choice unless the value is one of the choices."""
    names = list(choices)
    if value in names:
        return
    message = f"{name} must be one of {', '.join(names)}, but got {safe_repr(value)}"
    text = value if isinstance(value, str) else safe_repr(value)
    nearest = difflib.get_close_matches(text.lower(), names, n=1)
    raise UserError(message + (f"; did you mean {nearest[0]!r}?" if nearest else ""))


def check_path_encoding(path: str | os.PathLike[str]) -> None:
    """Check that a path is valid UTF-8; other paths can be neither stored in a file nor printed."""
    try:
        text = os.path.abspath(path)
    except OSError:  # the working directory has been deleted
        text = os.fspath(path)
    check(text == text.encode("utf-8", "replace").decode(), "a path must be text in UTF-8", text)


def is_int(value: object) -> bool:
    """Return whether a value is a Python or NumPy integer. Booleans do not count."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a finite Python or NumPy number in the range of a float. Booleans do not count."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def safe_repr(value: object) -> str:
    """Return `repr(value)`; numbers that are too long for Python to print get a description."""
    if isinstance(value, numbers.Real) and type(value).__module__ == "numpy":
        value = value.item()  # type: ignore[attr-defined]  # the repr of a NumPy number contains its type
    try:
        return repr(value)
    except ValueError:  # Python does not print integers of more than a few thousand digits
        return "a number of thousands of digits"


def describe_value(value: object) -> str:
    """Return the `repr` of None, text or a number, or the type of any other value."""
    if value is None or isinstance(value, str | int | float):
        return safe_repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def format_names(names: Sequence[str], max_names: int) -> str:
    """Return at most `max_names` names, quoted, in one line."""
    return ", ".join(map(repr, names[:max_names])) + (", …" if len(names) > max_names else "")


def format_error(error: BaseException) -> str:
    """Return the message of an error in one line, or its type if it has no message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
