from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from shell import Condenset, run_here, write_npz


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may see, or fill, the folders of whoever runs it."""
    monkeypatch.setenv("CONDENSET_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def condenset(capsys: pytest.CaptureFixture[str]) -> Condenset:
    """`condenset("run", "digits", "--ipc", 1)` gives the exit code and what was printed."""
    return functools.partial(run_here, capsys)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tiny dataset of three classes."""
    return write_npz(tmp_path / "toy.npz")
