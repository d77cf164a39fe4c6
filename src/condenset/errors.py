"""UserError, argument checks and warnings: one line with the rule, the value and the valid choices."""

from __future__ import annotations

import difflib
import math
import numbers
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

INTERNAL_PACKAGES = ("condenset", "contextlib")  # contextlib calls the functions that `torch_defaults` decorates
FlagFormatter = Callable[[str], str | None]  # the flag of an option by its Python name, None if there is none

_flag_formatter: ContextVar[FlagFormatter | None] = ContextVar("flag_formatter", default=None)  # None: Python


class UserError(ValueError):
    """A mistake that the user can correct. The command line prints its one line and exits with code 2.

    Args:
        message: The rule, the value given and the way out.
        details: Lines to print below the message, such as a tree of folders.
    """

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(escape_controls(" ".join(message.splitlines())))  # a file name can contain line breaks
        self.details = "\n".join(map(escape_controls, details.splitlines()))
        if self.details:
            self.add_note(self.details)  # Python prints notes below the message


def escape_controls(line: str) -> str:
    """Escape terminal control characters and lone surrogates, which names in files from outside can contain."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


@contextmanager
def use_flags(formatter: FlagFormatter | None) -> Iterator[None]:
    """Name options by their flags in the block, as the command line does; None: by their Python names."""
    token = _flag_formatter.set(formatter)
    try:
        yield
    finally:
        _flag_formatter.reset(token)


def option(name: str, value: object = None) -> str:
    """Return how the user gives an option: `--allow-fewer` on the command line, `allow_fewer=True` in Python.

    Args:
        name: The name of the option in Python.
        value: The value to give. None: the name alone, `--size` or `size=`.
    """
    formatter = _flag_formatter.get()
    if formatter is None:
        return f"{name}=" if value is None else f"{name}={value!r}"
    flag = formatter(name)
    if flag is None:  # a field of a recipe
        text = "" if value is None else "true" if value is True else str(value)
        return f"--set {name}={text}"
    return flag if value is None or value is True else f"{flag} {value}"


def has_option(name: str) -> bool:
    """Return whether the command in use has an option. In Python, the answer is always true."""
    formatter = _flag_formatter.get()
    return formatter is None or formatter(name) is not None


def by_interface(*, command_line: str, python: str) -> str:
    """Return the text for the interface in use."""
    return python if _flag_formatter.get() is None else command_line


def option_name(name: str) -> str:
    """Return the name of an option in a rule: the Python name, or the flag where that is another word (`--nets`)."""
    formatter = _flag_formatter.get()
    flag = formatter(name) if formatter else None
    return name if flag in (None, f"--{name.replace('_', '-')}") else str(flag)


def format_command(*words: object) -> str:
    """Return a condenset command that can be pasted into a shell, such as `condenset resume 'runs/my photos'`."""
    return shlex.join(["condenset", *map(str, words)])


def check(condition: bool, rule: str, value: object) -> None:
    """Raise the UserError `RULE, but got VALUE` unless the condition is true."""
    if not condition:
        raise UserError(f"{rule}, but got {safe_repr(value)}")


def check_type(value: object, types: type | tuple[type, ...], rule: str) -> None:
    """Raise the UserError `RULE, but got VALUE_OR_TYPE` unless the value is an instance of one of the types."""
    if not isinstance(value, types):
        raise UserError(f"{rule}, but got {describe_value(value)}")


def check_int(name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Check that a value is an integer from `minimum` to `maximum`, of at most 64 bits; return it as a Python int."""
    rule = f"{option_name(name)} must be a whole number" + ("" if minimum is None else f", {minimum} or more")
    check(is_int(value) and (minimum is None or value >= minimum), rule, value)
    check(int(value).bit_length() <= 64, f"{option_name(name)} must be a whole number of at most 64 bits", value)
    check(maximum is None or value <= maximum, f"{option_name(name)} must be at most {maximum}", value)
    return int(value)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise a UserError unless the value is one of the choices. It suggests a similar choice, else it lists all."""
    names = list(choices)
    if value in names:
        return
    text = value if isinstance(value, str) else safe_repr(value)
    if nearest := difflib.get_close_matches(text.lower(), names, n=1):
        raise UserError(f"{name} cannot be {safe_repr(value)}; did you mean {nearest[0]!r}?")
    raise UserError(f"{name} must be one of {', '.join(names)}, but got {safe_repr(value)}")


def check_path(name: str, value: object) -> None:
    """Check that an argument is a path."""
    check_type(value, (str, os.PathLike), f"{name} must be a path")


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


@contextmanager
def wrap_errors(description: str) -> Iterator[None]:
    """Turn exceptions in the code of a user, such as a network builder, into a UserError with this description."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{description} failed: {format_error(error)}") from error


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about something that the user can change. The warning points at the line that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INTERNAL_PACKAGES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def format_error(error: BaseException) -> str:
    """Return the message of an error in one line, or its type if it has no message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
