"""Without a GPU kernels run in triton's interpreter, so that they are tested all the same; and what files share."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tiny tensors threads only wait for each other; torch reads it once

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

from helpers.command_line import CommandRunner, run_in_process, write_npz


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
def condenset(capsys: pytest.CaptureFixture[str]) -> CommandRunner:
    """`condenset("run", "digits", "--ipc", 1)` gives the exit code and what was printed."""
    return functools.partial(run_in_process, capsys)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tiny dataset of three classes."""
    return write_npz(tmp_path / "toy.npz")
