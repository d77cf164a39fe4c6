from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from condenset.errors import UserError
from condenset.io import files
from condenset.io.files import open_file, read_file, read_metadata, read_tensors, write_file, write_tensors


@contextmanager
def another_user() -> Iterator[None]:
    """Give up the rights of root, who can read every file."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(UserError, match=r"file must have at most 4 bytes, but got 5$"):
        read_file(path, 4)
    with pytest.raises(UserError, match=r"^no such file: "):
        read_file(tmp_path / "missing", 4)
    with pytest.raises(UserError, match=r"^cannot read .*: Is a directory$"):
        read_file(tmp_path, 4)
    with pytest.raises(UserError, match=r"^cannot read .*: embedded null byte$"):
        read_file("a\0b", 4)


def test_pipes_and_devices_neither_block_nor_fill_the_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match=rf"^cannot read {path}: it is a pipe or a device"), open_file(path):
            pass
        with pytest.raises(UserError, match=rf"^cannot read {path}: it is a pipe or a device"):
            read_metadata(path)


def test_file_without_read_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.safetensors"
    write_tensors(path, {"x": torch.zeros(2)}, {})
    read_tensors(path)
    path.chmod(0)
    for read in (read_tensors, read_metadata):
        with another_user(), pytest.raises(UserError, match=rf"^cannot read {path}: Permission denied$"):
            read(path)


def test_tensors_that_exceed_the_memory_are_not_read(tmp_path: Path) -> None:
    size = 1 << 42
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"images": tensor}).encode()
    path = tmp_path / "set.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + size)  # sparse: takes no disk space
    with pytest.raises(UserError, match=r"set.safetensors needs 4 TiB, but this machine has"):
        read_tensors(path)


def test_the_limit_of_a_container_is_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "CGROUP", tmp_path)
    host = files.physical_memory(), files.available_host_memory()
    assert 2**20 < host[1] <= host[0]
    (tmp_path / "memory.max").write_text("1000000\n")
    assert files.physical_memory() == files.available_host_memory() == 1000000
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 100000\n")
    assert files.available_host_memory() == 700000
    (tmp_path / "memory.max").write_text("max\n")
    assert files.physical_memory() == host[0]
    assert files.available_host_memory() > 1000000


def test_write_file_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", b"one")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode  # readable by others, as any file
    (tmp_path / "b").unlink()

    def raise_disk_full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("condenset.io.files.os.fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
