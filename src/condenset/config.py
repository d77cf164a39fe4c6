"""Validate the fields of configuration dataclasses: recipes and protocols."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from condenset.errors import check, check_choice, check_int, is_number

T = TypeVar("T")

MAX_COUNT = 100_000_000  # of iterations, steps, epochs and images per batch
MAX_NETWORKS = 100_000  # also of sets: lists of them must fit into memory
MAX_NUMBER = 1e9  # of learning rates and other factors; float32 overflows above 3e38


def check_int_fields(config: object, minimum: int, *names: str, maximum: int = MAX_COUNT) -> None:
    """Check that fields are integers from `minimum` to `maximum`, and store them as Python integers."""
    for name in names:
        object.__setattr__(config, name, check_int(name, getattr(config, name), minimum, maximum))


def check_positive_fields(config: object, *names: str) -> None:
    """Check that fields are numbers above 0, at most `MAX_NUMBER`, and store them as Python floats."""
    for name in names:
        value = getattr(config, name)
        check(is_number(value) and value > 0, f"{name} must be a number above 0", value)
        check(value <= MAX_NUMBER, f"{name} must be at most {MAX_NUMBER:g}", value)
        object.__setattr__(config, name, float(value))


def check_non_negative_field(config: object, name: str) -> None:
    """Check that a field is a number from 0 to `MAX_NUMBER`, and store it as a Python float."""
    value = getattr(config, name)
    check(is_number(value) and value >= 0, f"{name} must be a number, 0 or more", value)
    check(value <= MAX_NUMBER, f"{name} must be at most {MAX_NUMBER:g}", value)
    object.__setattr__(config, name, float(value))


def check_momentum_field(config: object) -> None:
    """Check that `momentum` is a number in [0, 1), and store it as a Python float."""
    momentum: Any = getattr(config, "momentum", None)
    check(is_number(momentum) and 0 <= momentum < 1, "momentum must be a number from 0 to below 1", momentum)
    object.__setattr__(config, "momentum", float(momentum))


def check_bool_fields(config: object, *names: str) -> None:
    """Check that fields are booleans."""
    for name in names:
        value = getattr(config, name)
        check(isinstance(value, bool), f"{name} must be true or false", value)


def check_text_fields(config: object, *names: str) -> None:
    """Check that fields are text."""
    for name in names:
        check(isinstance(getattr(config, name), str), f"{name} must be text", getattr(config, name))


def field_names(config_class: type[Any]) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(config_class)}


def field_defaults(config: object) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass that have one."""
    fields = dataclasses.fields(config)  # type: ignore[arg-type]
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}


def type_name(field: dataclasses.Field[Any]) -> str:
    """Return the annotation of a field as text, such as `int`. A module may or may not evaluate its annotations."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def describe_fields(
    config_class: type[Any], choices: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return name, type, default, valid choices (if limited) and description of every field of a dataclass.

    Descriptions come from the section Attributes of the docstrings of the class and its base classes.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        descriptions |= _read_attributes(base.__doc__ or "")
    return [
        {
            "name": field.name,
            "type": type_name(field),
            "default": None if field.default is dataclasses.MISSING else field.default,
            **({"choices": list(choices[field.name])} if field.name in choices else {}),
            "description": descriptions.get(field.name, ""),
        }
        for field in dataclasses.fields(config_class)
    ]


def _read_attributes(docstring: str) -> dict[str, str]:
    """Return the descriptions of the section Attributes by name."""
    section = re.search(r"^Attributes:\n((?: .*\n?|\n)*)", inspect.cleandoc(docstring), re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def make_config(config_class: type[T], description: str, fields: dict[str, Any]) -> T:
    """Build a config from keywords. Float fields accept integers and NumPy numbers, and text fields accept paths.

    Args:
        config_class: The dataclass.
        description: A noun for a field in error messages, such as "an option of dm".
        fields: Values by field name.

    Raises:
        UserError: A name is unknown (the message suggests the nearest one), or a value is invalid.
    """
    types = {field.name: type_name(field) for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    for name in fields:
        check_choice(description, name, types)
    values = dict(fields)
    for name, value in fields.items():
        if types[name] == "float" and is_number(value):
            values[name] = float(value)
        elif types[name] == "str" and isinstance(value, os.PathLike):
            values[name] = os.fspath(value)
        elif types[name] == "str":
            check(isinstance(value, str), f"{name} must be text", value)
    return config_class(**values)
