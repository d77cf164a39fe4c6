"""Validate the fields of configuration dataclasses: recipes and protocols."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar

from condenset.errors import check, check_choice, check_int, is_number

T = TypeVar("T")


def check_int_fields(config: object, minimum: int, *names: str) -> None:
    """Check that fields are integers of at least `minimum`, and store them as Python integers."""
    for name in names:
        object.__setattr__(config, name, check_int(name, getattr(config, name), minimum))


def check_positive_fields(config: object, *names: str) -> None:
    """Check that fields are numbers above 0, and store them as Python floats."""
    for name in names:
        value = getattr(config, name)
        check(is_number(value) and value > 0, f"{name} must be a number above 0", value)
        object.__setattr__(config, name, float(value))


def check_non_negative_field(config: object, name: str) -> None:
    """Check that a field is a number of at least 0, and store it as a Python float."""
    value = getattr(config, name)
    check(is_number(value) and value >= 0, f"{name} must be a number, 0 or more", value)
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


def field_names(config_class: type[Any]) -> set[str]:
    """Return the names of a dataclass's fields."""
    return {field.name for field in dataclasses.fields(config_class)}


def make_config(config_class: type[T], description: str, fields: dict[str, Any]) -> T:
    """Build a config from keywords. Float fields accept integers and NumPy numbers, and text fields accept paths.

    Args:
        config_class: The dataclass.
        description: A noun for a field in error messages, such as "an option of dm".
        fields: Values by field name.

    Raises:
        UserError: A name is unknown (the message suggests the nearest one), or a value is invalid.
    """
    types = {field.name: field.type for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
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
