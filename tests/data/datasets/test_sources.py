from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from condenset.data import DATASETS, data_directory, load, register_dataset
from helpers.data_files import ExpectUserError


def test_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_directory("~/x") == Path.home() / "x"
    assert data_directory() == tmp_path / "data"
    monkeypatch.delenv("CONDENSET_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory() == tmp_path / "cache" / "condenset"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory() == Path.home() / ".cache" / "condenset"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_directory() == Path.home() / "Library" / "Caches" / "condenset"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_directory() == tmp_path / "local" / "condenset"


@pytest.mark.parametrize("name", DATASETS)
def test_registered_dataset_is_consistent(name: str) -> None:
    source = DATASETS[name]
    assert name == source.name == name.lower() and name.isalnum()
    if source.mean is not None and source.std is not None:
        assert len(source.mean) == len(source.std) == source.shape[0]
    assert source.is_bundled or source.directories
    assert source.is_bundled or bool(source.downloads) != bool(source.instructions)
    for download in source.downloads:
        assert download.digest.startswith("md5:") and len(download.digest) == 36 and download.size > 0


def test_registered_names_are_normalized(user_error: ExpectUserError) -> None:
    source = dataclasses.replace(DATASETS["digits"], name="my_digits")
    for _ in range(2):  # a package may register at import and through an entry point
        assert register_dataset(source) is source
    try:
        for name in ("my_digits", "My-Digits", "mydigits"):
            assert load(name).train.name == "my_digits"
        with user_error("did you mean 'my_digits'?"):
            load("my_digit")
        with user_error("a dataset named 'my_digits' is already registered"):
            register_dataset(dataclasses.replace(source, title="another"))
    finally:
        DATASETS.unregister("my_digits")
    with user_error("must be an instance of DatasetSource"):
        register_dataset("digits")  # type: ignore[arg-type]
    with user_error("must be a Python identifier"):
        register_dataset(dataclasses.replace(source, name="my-digits"))
