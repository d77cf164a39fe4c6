"""The public names and their parameters are those that tests/public_names.txt lists.

After an intended change, write the list again and mention the change in CHANGELOG.md:
    python tests/test_public_names.py > tests/public_names.txt
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import condenset as cs

NAMES = Path(__file__).with_name("public_names.txt")
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
WIDTH = 120


def list_names() -> Iterator[str]:
    """Yield each public name with its parameters, and the public methods of each class."""
    for name in cs.__all__:
        value = getattr(cs, name)
        if not callable(value):
            yield f"{name}: {type(value).__name__}"
            continue
        yield from describe_call(name, value)
        for method in list_methods(value) if inspect.isclass(value) else ():
            yield from describe_call(f"    {name}.{method}", getattr(value, method))


def list_methods(kind: type) -> list[str]:
    """Return the public methods and properties of a class, without those of another public class."""
    classes = [base for base in kind.__mro__ if base is kind or base.__name__ not in cs.__all__]
    own = [base for base in classes if base.__module__.startswith("condenset")]
    kinds = (property, classmethod, staticmethod)
    names = {name for base in own for name, value in vars(base).items() if callable(value) or isinstance(value, kinds)}
    return sorted(name for name in names if not name.startswith("_"))


def describe_call(name: str, value: Any) -> Iterator[str]:
    """Yield a name with its parameters, and the keywords that it accepts."""
    if not callable(value):  # a property
        yield name
        return
    parameters = [item for item in inspect.signature(value).parameters.values() if item.name != "self"]
    words = []
    for number, item in enumerate(parameters):
        is_first_keyword = item.kind is item.KEYWORD_ONLY and (not number or parameters[number - 1].kind < item.kind)
        words += ["*"] * is_first_keyword + [f"**{item.name}" if item.kind is item.VAR_KEYWORD else item.name]
    indent = " " * (len(name) - len(name.lstrip()) + 8)
    yield from textwrap.wrap(f"{name}({', '.join(words)})", WIDTH, subsequent_indent=indent, initial_indent="")
    yield from textwrap.wrap(", ".join(list_keywords(value)), WIDTH, initial_indent=indent, subsequent_indent=indent)


def list_keywords(function: Any) -> list[str]:
    """Return the keywords of a function that `**options: Unpack[...]` declares."""
    target = function.__init__ if inspect.isclass(function) else function
    code = inspect.signature(target).parameters.values()
    names = [item.name for item in code if item.kind is item.VAR_KEYWORD and "Unpack" in str(item.annotation)]
    hints = typing.get_type_hints(target) if names else {}
    return [f"{keyword}=" for name in names for keyword in sorted(typing.get_args(hints[name])[0].__annotations__)]


def test_public_names() -> None:
    assert NAMES.read_text().splitlines() == list(list_names()), __doc__


def test_changelog_has_the_version() -> None:
    """The format is that of Keep a Changelog: the newest version first, with known headings."""
    text = CHANGELOG.read_text()
    versions = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", text, re.MULTILINE)
    assert versions[0] == ("Unreleased", "") and versions[1][0] == cs.__version__
    assert all(date for _, date in versions[1:])
    headings = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


if __name__ == "__main__":
    print(*list_names(), sep="\n")
