from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from condenset.errors import UserError
from condenset.io.directories import (
    atomic_directory,
    clean_up_directories,
    create_unique_directory,
    ensure_writable,
    is_empty,
    lock_directory,
    remove_temporary_files,
    sync_contents,
    temporary_directory,
    wrap_os_errors,
)
from condenset.io.locks import is_locked, try_lock


def test_os_errors_become_one_line(tmp_path: Path) -> None:
    full_disk = pytest.raises(UserError, match=r"^cannot write to some/path: No space left on device$")
    with full_disk, wrap_os_errors("some/path"):
        raise OSError(28, "No space left on device")
    wrong_type = pytest.raises(UserError, match=rf"^cannot read {tmp_path}: Is a directory$")
    with wrong_type, wrap_os_errors(tmp_path, "read"):
        tmp_path.read_bytes()
    failed_rename = pytest.raises(UserError, match=rf"^cannot write to {tmp_path / 'b'}: ")  # names the target
    with failed_rename, wrap_os_errors(tmp_path):
        (tmp_path / "a").rename(tmp_path / "b")


def test_ensure_writable(tmp_path: Path) -> None:
    ensure_writable(tmp_path / "new" / "directory")
    assert is_empty(tmp_path / "new" / "directory")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to"):
        ensure_writable(tmp_path / "file")


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    assert is_empty(tmp_path / "missing")
    (tmp_path / ".hidden").touch()
    assert is_empty(tmp_path)
    (tmp_path / "visible").touch()
    assert not is_empty(tmp_path)


def test_unique_directories_are_numbered(tmp_path: Path) -> None:
    names = [create_unique_directory(tmp_path / "runs" / "digits").name for _ in range(3)]
    assert names == ["digits", "digits-2", "digits-3"]


def test_lock_excludes_others_until_the_block_ends(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        with try_lock(tmp_path) as has_lock:
            assert has_lock is False
        with pytest.raises(UserError, match=f"another process is using {tmp_path}"), lock_directory(tmp_path):
            pass
    with try_lock(tmp_path) as has_lock:
        assert has_lock


def test_asking_for_a_lock_does_not_stop_a_process_that_wants_it(tmp_path: Path) -> None:
    assert is_locked(tmp_path) is False
    with lock_directory(tmp_path):
        assert is_locked(tmp_path)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # as `is_locked` does for a moment
    assert is_locked(tmp_path) is False  # two may ask at once
    threading.Timer(0.03, os.close, [handle]).start()
    with lock_directory(tmp_path):
        assert is_locked(tmp_path)


def test_only_temporary_files_of_these_names_are_removed(tmp_path: Path) -> None:
    removed = [".a.json.x1.tmp", "sets/.dm-1.safetensors.x2.tmp", "parts/b/c/.record.json.x3.tmp"]
    remaining = ["a.json", ".other.json.x1.tmp", "sets/dm-1.safetensors", "sets/.notes.tmp", "parts/b/record.json"]
    for name in (*removed, *remaining):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, ("a.json", "sets/*.safetensors", "parts/**/*"))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == set(remaining)


def test_atomic_directory_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directory, created = tempfile.mkdtemp, list[str]()

    def remove_first(**options: Any) -> str:
        created.append(make_directory(**options))
        if len(created) == 1:
            os.rmdir(created[0])  # as another process that takes it for a leftover
        return created[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", remove_first)
    with atomic_directory(tmp_path / "target") as workspace:
        (workspace / "target").mkdir()
    assert len(created) == 2 and list(tmp_path.iterdir()) == [tmp_path / "target"]


def test_atomic_directory_appears_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(RuntimeError, match="stop"), atomic_directory(target) as workspace:
        (workspace / "target").mkdir()
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []
    with atomic_directory(target) as workspace:
        (workspace / "target").mkdir()
        (workspace / "target" / "file").touch()
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["file"] and list(tmp_path.iterdir()) == [target]


def test_replaced_directory_is_not_lost_if_it_cannot_be_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "target", os.rename
    (target / "old").mkdir(parents=True)

    def fail_to_create_target(source: Any, destination: Any) -> None:
        if Path(destination) == target:
            raise OSError(5, "Input/output error")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fail_to_create_target)
    failure = pytest.raises(UserError, match="Input/output error")
    with failure, atomic_directory(target, overwrite=True) as workspace:
        (workspace / "target").mkdir()
    monkeypatch.undo()
    assert not target.exists()
    clean_up_directories(tmp_path)
    assert (target / "old").is_dir() and list(tmp_path.iterdir()) == [target]


def test_temporary_directory_removes_those_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "condenset-x.12345678").mkdir()
    (tmp_path / "condenset-x.12345678" / "file").touch()
    (tmp_path / "condenset-xy.12345678").mkdir()  # of another kind
    with temporary_directory("condenset-x") as first:
        (first / "file").touch()
        with temporary_directory("condenset-x") as second:
            assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "condenset-xy.12345678"}
            assert (first / "file").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["condenset-xy.12345678"]


def test_sync_contents_syncs_every_file_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    paths = [tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "1.png", tmp_path / "a" / "b" / "2.png"]
    for path in paths[3:]:
        path.write_bytes(b"x")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    sync_contents(tmp_path)
    assert sorted(synced) == sorted(path.stat().st_ino for path in paths)
