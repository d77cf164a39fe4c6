"""Damaged or foreign files in a run directory, and a full disk: one line, and no file changes."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from condenset.io import files
from condenset.runs import checkpoint
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY
from helpers.command_line import (
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    list_files,
    read_files,
    read_records,
    sets_equal,
)


def edit_header(content: bytes, edit: Callable[[dict[str, dict[str, object]]], None]) -> bytes:
    """Change the header of a .safetensors file."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: b"",
        lambda content: struct.pack("<Q", 2**62) + content[8:],
        lambda content: edit_header(content, lambda header: header["images"].update(shape=[2**40, 1, 8, 8])),
        lambda content: edit_header(content, lambda header: header["images"].update(shape=[3, 1, 4, 4])),
        lambda content: edit_header(content, lambda header: header["labels"].update(dtype="F64")),
        lambda content: edit_header(content, lambda header: header.pop("__metadata__")),
        lambda content: edit_header(content, lambda header: header["__metadata__"].update(condenset="[]")),
        lambda content: edit_header(content, lambda header: header["__metadata__"].update(condenset='{"format": 2}')),
    ],
)
def test_a_damaged_set_file_is_an_error(
    condenset: CommandRunner, toy: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    path = tmp_path / "a" / "sets" / "random-1.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    before = read_files(tmp_path)
    for command in (
        ("show", "a"),
        ("show", path, "--out", "b.png"),
        ("evaluate", "a", *TINY_EVALUATION),
        ("resume", "a"),
    ):
        assert "random-1.safetensors" in condenset(*command).error_line
    assert read_files(tmp_path) == before


def test_files_of_another_recipe_are_rejected(
    condenset: CommandRunner, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(RunContext, "delete_checkpoint", lambda self: None)
    condenset("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 2, "--out", "a")
    assert "checkpoint" in list_files(tmp_path / "a")
    recipe = tmp_path / "a" / "recipe.toml"
    text = recipe.read_text()
    (tmp_path / "a" / IDENTITY).unlink()  # it would show that the recipe has changed, as results.json would
    (tmp_path / "a" / "results.json").unlink()
    for old, new, differs in (("lr = 1.0", "lr = 2.0", "lr"), ("seed = 0", "seed = 1", "seed")):
        recipe.write_text(text.replace(old, new))
        condenset("resume", "a")  # writes the identity
        before = read_files(tmp_path)
        error_line = condenset("resume", "a").error_line
        assert f"dm-1.safetensors belongs to another recipe (it differs in {differs})" in error_line
        assert read_files(tmp_path) == before
        set_content = (tmp_path / "a" / "sets" / "dm-1.safetensors").read_bytes()
        (tmp_path / "a" / "sets" / "dm-1.safetensors").unlink()
        before = read_files(tmp_path)
        error_line = condenset("resume", "a").error_line
        assert f"a/checkpoint belongs to another recipe (it differs in {differs})" in error_line
        assert read_files(tmp_path) == before
        (tmp_path / "a" / "sets" / "dm-1.safetensors").write_bytes(set_content)
        (tmp_path / "a" / IDENTITY).unlink()


@pytest.mark.parametrize("content", [b"", b"{}", b"not a checkpoint at all"])
def test_a_damaged_checkpoint_is_an_error(condenset: CommandRunner, toy: Path, tmp_path: Path, content: bytes) -> None:
    condenset("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 2, "--out", "a")
    (tmp_path / "a" / "sets" / "dm-1.safetensors").unlink()
    (tmp_path / "a" / "checkpoint").write_bytes(content)
    before = read_files(tmp_path)
    assert "a/checkpoint is not" in condenset("resume", "a").error_line
    assert read_files(tmp_path) == before


def test_damaged_results_are_an_error(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    path = tmp_path / "a" / "results.json"
    records = json.loads(path.read_text())
    changes: list[dict[str, object]] = [
        {"method": ["dm"]},
        {"ipc": {}},
        {"network": 3},
        {"condense_seconds": "1"},
        {"condense_seconds": 10**400},
        {"evaluate_seconds": []},
        {"accuracies": []},
        {"accuracies": [2]},
        {"accuracy_mean": "0.5"},
        {"accuracy_std": None},
        {"together": 3},
    ]
    without_accuracies = {key: value for key, value in records[1].items() if key != "accuracies"}
    damaged = [list(records[1]), without_accuracies, *(records[1] | change for change in changes)]
    for content in ("", "{}", "[3]", '[{"method": "dm"}]', *(json.dumps([record]) for record in damaged)):
        path.write_text(content)
        before = read_files(tmp_path)
        assert "a/results.json is not a list of results; delete it" in condenset("resume", "a").error_line, content
        assert read_files(tmp_path) == before
    path.unlink()
    assert condenset("resume", "a").code == 0
    repeated = json.loads(path.read_text())
    assert [record["accuracies"] for record in repeated] == [record["accuracies"] for record in records]


def test_a_run_on_a_full_disk_leaves_complete_files_and_resumes(
    condenset: CommandRunner, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("run", toy, "--ipc", 1, *TINY)
    written: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: written.append("x"))
    condenset(*command, "--out", "whole")
    total = len(written)
    assert total >= 7  # identity, recipe, two sets, results twice, picture
    for number in range(total):
        written.clear()

        def fsync(handle: int, number: int = number) -> None:
            written.append("x")
            if len(written) > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files.os, "fsync", fsync)
        directory = tmp_path / f"full-{number}"
        error_line = condenset(*command, "--out", directory).err.splitlines()[-1]  # the table may be printed
        assert error_line.startswith("condenset: cannot write to")
        assert "No space left on device" in error_line
        assert not [name for name in list_files(directory) if name.endswith(".tmp")]
        monkeypatch.setattr(files.os, "fsync", lambda handle: None)
        again = ("resume", directory) if number > 1 else (*command, "--out", directory)
        assert condenset(*again).code == 0
        assert list_files(directory) == list_files(tmp_path / "whole")
        first, second = (read_records(path) for path in (tmp_path / "whole", directory))
        assert [record["accuracies"] for record in first] == [record["accuracies"] for record in second]


def test_resume_reports_a_damaged_set_of_a_finished_run(condenset: CommandRunner, toy: Path) -> None:
    options = ("--ipc", 1, "--method", "random", *TINY_NETWORK, *TINY_EVALUATION, "--no-whole")
    assert condenset("run", toy, *options, "--out", "a").code == 0
    path = Path("a/sets/random-1.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert condenset("resume", "a").error_line.endswith("delete it to make the set again")
    path.unlink()
    assert condenset("resume", "a").code == 0
    Path("expected.safetensors").write_bytes(content)
    assert sets_equal(path, Path("expected.safetensors"))
