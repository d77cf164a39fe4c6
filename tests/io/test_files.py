from __future__ import annotations

from pathlib import Path

import pytest

from condenset.io.files import write_file


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
