"""Errors that are the user's to mend: one line with the rule, the value given and the choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its one line and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # a file's name may hold a line break


def check(holds: bool, rule: str, value: object) -> None:
    """Raise `RULE, but got VALUE` unless the rule holds."""
    if not holds:
        raise UserError(f"{rule}, but got {value!r}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise `NAME must be one of …, but got VALUE` with the nearest choice, unless value is one of them."""
    names = list(choices)
    if value in names:
        return
    message = f"{name} must be one of {', '.join(names)}, but got {value!r}"
    near = difflib.get_close_matches(str(value).lower(), names, n=1)
    raise UserError(message + (f"; did you mean {near[0]!r}?" if near else ""))
