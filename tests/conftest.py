"""Shared fixtures. Kernels run in Triton's interpreter, unless the machine has the driver of an NVIDIA GPU.

The controller of pytest-xdist reads this file before it starts processes for the tests. So nothing here imports PyTorch
before the tests run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads slow down tiny tensors; torch reads this once

import hypothesis
import pytest

if "TRITON_INTERPRET" not in os.environ:  # Triton reads this when the kernels are imported
    try:
        ctypes.CDLL("libcuda.so.1")
        os.environ["TRITON_INTERPRET"] = "0"
    except OSError:  # no driver of NVIDIA
        os.environ["TRITON_INTERPRET"] = "1"

if TYPE_CHECKING:
    from helpers.command_line import CommandRunner

hypothesis.settings.register_profile("condenset", deadline=None)  # a busy machine is slow
hypothesis.settings.load_profile("condenset")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a shell for its background jobs; tests send this signal
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run tests that share a slow fixture in one process, with `--dist loadgroup`."""
    from helpers.scheduling import GroupScheduling

    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(autouse=True)
def temporary_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use temporary data and working directories, not those of the user."""
    monkeypatch.setenv("CONDENSET_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Use one thread, which is fastest for tiny tensors."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def blank_charts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write blank charts, except in tests with the mark `charts`."""
    if request.node.get_closest_marker("charts") is None:
        from helpers.charts import skip_drawing

        skip_drawing(monkeypatch.setattr)


@pytest.fixture
def condenset(capsys: pytest.CaptureFixture[str]) -> CommandRunner:
    """Return a function that runs a command: `condenset("run", "digits", "--ipc", 1)` -> exit code and output."""
    from helpers.command_line import run_in_process

    return functools.partial(run_in_process, capsys)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tiny dataset of three classes."""
    from helpers.command_line import write_npz

    return write_npz(tmp_path / "toy.npz")


@pytest.fixture
def fast_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scale `tiny` still smaller."""
    from condenset.experiments import scales
    from condenset.methods import METHODS

    for method in METHODS.values():
        for name, value in (("iterations", 2), ("batch_size", 8)):
            if name in method.tiny:
                monkeypatch.setitem(method.tiny, name, value)  # type: ignore[arg-type]
    monkeypatch.setitem(scales.PROTOCOL_FIELDS["tiny"], "epochs", 1)
    monkeypatch.setitem(scales.WHOLE_PROTOCOL_FIELDS["tiny"], "epochs", 1)
