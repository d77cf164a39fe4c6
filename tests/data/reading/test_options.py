from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condenset.data import LoadOptions, load
from helpers.data_files import ExpectUserError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size must be a whole number in 1..4096, but got 0"),
        ({"fit": "stretch"}, "fit must be one of crop, pad, but got 'stretch'"),
        ({"background": "whiteish"}, "background must be a colour name or #rrggbb, but got 'whiteish'"),
        ({"background": 3}, "background must be text, but got 3"),
        ({"white_level": 0}, "white_level must be a whole number, 1 or more, but got 0"),
        ({"white_level": 65536}, "white_level must be at most 65535, but got 65536"),
        ({"nested": 1}, "nested must be true or false, but got 1"),
        ({"skip_bad": None}, "skip_bad must be true or false, but got None"),
        ({"test": 3}, "test must be a path, but got 3"),
        ({"test": ""}, "test must be a path, but got ''"),
        ({"test_share": 1}, "test_share must be a number between 0 and 1, but got 1"),
        ({"test_share": "0.2"}, "test_share must be a number between 0 and 1, but got '0.2'"),
        ({"test": "x", "test_share": 0.2}, "test= and test_share= exclude each other"),
        ({"val_share": -0.1}, "val_share must be 0 or a number between 0 and 1, but got -0.1"),
        ({"val_share": 1}, "val_share must be 0 or a number between 0 and 1, but got 1"),
        ({"test": "x", "val_share": 0.2}, "test= and val_share= exclude each other"),
        ({"sise": 32}, "did you mean 'size'?"),
    ],
)
def test_invalid_options_are_rejected(fields: dict[str, Any], message: str, user_error: ExpectUserError) -> None:
    with user_error(message):
        load("digits", **fields)


def test_changed_fields_make_the_same_options() -> None:
    assert LoadOptions().changed_fields() == {}
    options = LoadOptions(size=np.int64(32), background="#102030", test=Path("here"))  # type: ignore[arg-type]
    assert json.loads(json.dumps(options.changed_fields())) == {"size": 32, "background": "#102030", "test": "here"}
    assert LoadOptions(**options.changed_fields()) == options
