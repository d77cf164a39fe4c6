"""Simple mistakes are found before PyTorch is imported, with the messages of the library."""

from __future__ import annotations

import importlib.abc
import io
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from condenset.cli import startup
from condenset.cli.startup import STATUS, import_torch
from helpers.command_line import CommandRunner


class FakeTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import an empty module as torch, after a call of `on_import`."""

    def __init__(self, on_import: Callable[[], None]) -> None:
        self.on_import = on_import

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name == "torch" else None

    def exec_module(self, module: ModuleType) -> None:
        self.on_import()


def replace_torch(monkeypatch: pytest.MonkeyPatch, on_import: Callable[[], None]) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [FakeTorch(on_import), *sys.meta_path])


def fail() -> None:
    raise AssertionError("torch is imported")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run", "no dataset: give a name"),
        ("run cifar11", "did you mean 'cifar10'?"),
        ("compare ./photos", "no such folder or file: photos"),
        ("plan photos", "or a path that exists, but got 'photos'"),
        ("data check photos", "or a path that exists, but got 'photos'"),
        ("run digits --method random,dx", "method must be one of random, "),
        ("condense digits --out old", "old already contains a run"),
        ("run --config none.toml", "no such file: none.toml"),
        ("evaluate none.safetensors", "no such file: none.safetensors"),
        ("export old/sets/none.safetensors x.npz", "old/sets has 'random-1.safetensors'"),
        ("show mnist-dm-2", "did you mean the finished set 'mnist-dm-1'?"),
        ("resume none", "no such directory: none"),
        ("report .", ". is not a run"),
        ("methods dx", "method must be one of random, "),
    ],
)
def test_mistakes_are_found_before_the_import(
    condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch, toy: Path, arguments: str, message: str
) -> None:
    if "old" in arguments:
        assert condenset("condense", toy, "--method", "random", "--ipc", 1, "--out", "old").code == 0
    late = condenset(*arguments.split()).error_line
    replace_torch(monkeypatch, fail)
    early = condenset(*arguments.split()).error_line
    assert message in early and late == early


@pytest.mark.parametrize("name", ["digits", "CIFAR-10", "mine", "toy.npz", "none.npz"])
def test_datasets_that_may_exist_are_left_to_the_library(
    condenset: CommandRunner, monkeypatch: pytest.MonkeyPatch, toy: Path, name: str
) -> None:
    condenset("data", "import", toy, "mine", "--data-dir", "data")
    replace_torch(monkeypatch, lambda: None)
    import_torch(dataset=name, data_dir=Path("data"), methods=["dm,all"], sets=[Path("mnist-dm-1")])


def test_names_of_other_packages_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "list_plugins", lambda kind: ["own"])
    replace_torch(monkeypatch, lambda: None)
    import_torch(dataset="unknown", methods=["unknown"])


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_a_line_during_the_import(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    stream, texts = io.StringIO(), list[str]()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    replace_torch(monkeypatch, lambda: texts.append(stream.getvalue()))
    import_torch()
    assert texts == [f"{STATUS}\r" if is_terminal else ""]
    assert stream.getvalue().endswith(" \r") == is_terminal  # the line is removed
