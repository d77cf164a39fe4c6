"""A full disk, a read-only directory and truncated checkpoints: one line, and resuming has the same result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from condenset.runs import checkpoint, loop
from helpers.command_line import TINY_NETWORK as NETWORK
from helpers.command_line import CommandRunner, sets_equal
from helpers.disk import limited_file_size

SET = Path("sets/dm-1.safetensors")
CONDENSE = ("condense", "toy.npz", "--ipc", 1, *NETWORK, "--iterations", 6, "--out")


@pytest.fixture(autouse=True)
def checkpoint_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "SYNC_SECONDS", 0.0)


@pytest.fixture
def expected_set(condenset: CommandRunner, toy: Path) -> Path:
    """The set of an undisturbed run."""
    assert condenset(*CONDENSE, "expected").code == 0
    return "expected" / SET


@contextmanager
def stop_after_checkpoints(monkeypatch: pytest.MonkeyPatch, number: int, action: Any) -> Iterator[None]:
    """Call `action` in place of writing the tensors of a checkpoint after the first `number`."""
    real, num_writes = checkpoint.write_tensors, 0

    def write(*arguments: Any) -> None:
        nonlocal num_writes
        num_writes += 1
        (real if num_writes <= number else action)(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", write)
        yield


def test_run_continues_after_a_full_disk(
    condenset: CommandRunner, expected_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.write_tensors

    def write_to_full_disk(*arguments: Any) -> None:
        with limited_file_size(500):
            real(*arguments)

    with stop_after_checkpoints(monkeypatch, 3, write_to_full_disk):
        assert "cannot write to a/checkpoint: File too large" in condenset(*CONDENSE, "a").error_line
    names = {path.name for path in Path("a").iterdir()}
    assert "checkpoint.previous" in names and not any(name.endswith(".tmp") for name in names)
    with stop_after_checkpoints(monkeypatch, 1, write_to_full_disk):  # once more, one step later
        assert "cannot write to a/checkpoint" in condenset("resume", "a").error_line
    assert condenset("resume", "a").code == 0
    assert sets_equal("a" / SET, expected_set)


def test_directory_that_becomes_read_only_is_one_line(
    condenset: CommandRunner, expected_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_to_read_only_directory(path: Path, *_: Any) -> None:
        raise OSError(30, "Read-only file system", str(path))

    with stop_after_checkpoints(monkeypatch, 2, write_to_read_only_directory):
        assert "cannot write to a/checkpoint: Read-only file system" in condenset(*CONDENSE, "a").error_line
    assert condenset("resume", "a").code == 0
    assert sets_equal("a" / SET, expected_set)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a directory that nobody can write to")
def test_run_in_a_read_only_directory_is_refused_before_it_begins(condenset: CommandRunner, toy: Path) -> None:
    assert "cannot write to /proc/run" in condenset(*CONDENSE, "/proc/run").error_line


@pytest.mark.filterwarnings("always:.*checkpoint is damaged")
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_checkpoint_is_replaced_by_the_previous_one(
    condenset: CommandRunner, expected_set: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    def interrupt(*_: Any) -> None:
        os.replace("a/checkpoint.previous", "a/checkpoint")  # as if the last one had not been replaced
        raise KeyboardInterrupt

    with stop_after_checkpoints(monkeypatch, 4, interrupt):
        assert condenset(*CONDENSE, "a").code == 130
    path = Path("a/checkpoint")
    content = path.read_bytes()
    Path("a/checkpoint.previous").write_bytes(content)
    path.write_bytes(content[: int(share * len(content))])
    result = condenset("resume", "a")
    assert result.code == 0 and "checkpoint is damaged: the job continues from the checkpoint before it" in result.err
    assert sets_equal("a" / SET, expected_set)
