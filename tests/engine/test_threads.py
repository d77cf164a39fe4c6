"""The number of CPU threads is recorded, and a resumed run uses the recorded one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import condenset as cs
from condenset import UserError
from condenset.engine.threads import check_threads, use_threads
from helpers.reference_dm import tiny_data


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_threads_change_for_a_block(many_cores: None) -> None:
    torch.set_num_threads(1)
    with use_threads(2):
        assert torch.get_num_threads() == 2
    with use_threads(None):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 1


def test_more_threads_than_cores_work_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    torch.set_num_threads(1)
    with pytest.warns(UserWarning, match="with 2 CPU threads, .* has 1 cores: it is slow"), use_threads(2):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("value", [0, -1, 1025, 1.5, "2", True])
def test_invalid_numbers_are_refused(value: object) -> None:
    with pytest.raises(UserError, match="threads must be"):
        check_threads(value)


def test_a_resumed_call_uses_the_threads_of_the_first(tmp_path: Path, many_cores: None) -> None:
    torch.set_num_threads(2)
    options = {"ipc": 1, "device": "cpu", "verbose": False, "directory": tmp_path}
    first = cs.condense(tiny_data([3, 3]), "random", **options)
    (tmp_path / "condensed.safetensors").unlink()
    torch.set_num_threads(1)
    second = cs.condense(tiny_data([3, 3]), "random", **options)
    assert first.provenance["threads"] == second.provenance["threads"] == 2
    assert torch.get_num_threads() == 1
