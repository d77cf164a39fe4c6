"""The examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import condenset as cs

PACKAGE = Path(cs.__file__).parent
PATHS = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]
WITH_EXAMPLE = ("condense", "evaluate", "rank", "train_pool", "load", "Memory")


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [module_name(path) for path in PATHS])
def test_examples_print_what_they_show(name: str) -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert results.attempted > 0
    assert results.failed == 0  # doctest prints the differences


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_main_functions_have_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(getattr(cs, name)) or "")
