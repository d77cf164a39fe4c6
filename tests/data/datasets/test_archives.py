from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from condenset.data.datasets.archives import unpack
from helpers.data_files import ExpectUserError, make_classes


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def make_tar(path: Path, *members: tuple[str, bytes, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = content.decode() if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content))


GOOD = ("set/a", tarfile.REGTYPE, b"12345")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../evil", tarfile.REGTYPE, b"x"), "a path outside of it"),
        (("/evil", tarfile.REGTYPE, b"x"), "a path outside of it"),
        (("set/link", tarfile.SYMTYPE, b"a"), "no links or devices"),
        (("set/link", tarfile.SYMTYPE, b"../../evil"), "no links or devices"),
        (("set/hard", tarfile.LNKTYPE, b"set/a"), "no links or devices"),
        (("set/pipe", tarfile.FIFOTYPE, b""), "no links or devices"),
        (("set/device", tarfile.CHRTYPE, b""), "no links or devices"),
        (("set/" + "n" * 300_000, tarfile.REGTYPE, b"x"), "cannot unpack"),
        (("set/large", tarfile.REGTYPE, bytes(2000)), "at most 1000 bytes"),
    ],
)
def test_malicious_tar_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, member: tuple[str, bytes, bytes], message: str
) -> None:
    archive = tmp_path / "set.tar.gz"
    make_tar(archive, GOOD, member)
    with user_error(message):
        unpack(archive, tmp_path / "in" / "set", max_bytes=1000)
    assert names(tmp_path) == ["in", "set.tar.gz"] and names(tmp_path / "in") == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "set/../../evil", "set\\..\\evil", "c:evil"])
def test_zip_with_paths_outside_is_rejected(tmp_path: Path, user_error: ExpectUserError, name: str) -> None:
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("set/a", "12345")
        info = zipfile.ZipInfo("x")
        info.filename = name
        packed.writestr(info, "x")
    with user_error(f"cannot unpack {archive}", "a path outside of it"):
        unpack(archive, tmp_path / "in" / "set", max_bytes=1000)
    assert names(tmp_path) == ["in", "set.zip"] and names(tmp_path / "in") == []


def test_zip_with_a_link_is_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        info = zipfile.ZipInfo("set/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    with user_error("no links or devices"):
        unpack(archive, tmp_path / "set", max_bytes=1000)


def test_zip_is_unpacked_completely_or_not_at_all(tmp_path: Path, user_error: ExpectUserError) -> None:
    archive, target = tmp_path / "set.zip", tmp_path / "in" / "set"
    make_classes(tmp_path / "source" / "set")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("set")
        for file in sorted((tmp_path / "source").rglob("*.png")):
            packed.write(file, file.relative_to(tmp_path / "source"))
    with user_error("unpack to at most 100 bytes"):
        unpack(archive, target, max_bytes=100)
    with user_error("must contain the directory 'other'"):
        unpack(archive, tmp_path / "in" / "other", max_bytes=10**6)
    content = archive.read_bytes()
    for broken in (content[: len(content) // 2], content[:100] + bytes(50) + content[150:], b""):
        archive.write_bytes(broken)
        with user_error(f"cannot unpack {archive}"):
            unpack(archive, target, max_bytes=10**6)
        assert names(tmp_path / "in") == []
    archive.write_bytes(content)
    unpack(archive, target, max_bytes=10**6)
    assert names(target) == ["a", "b"] and names(tmp_path / "in") == ["set"]
    assert (
        target.stat().st_mode == (tmp_path / "source").stat().st_mode
    )  # not the private mode of a temporary directory


@pytest.mark.parametrize("content", [b"", b"text", tarfile.BLKTYPE * 500])
def test_broken_tar_is_rejected(tmp_path: Path, user_error: ExpectUserError, content: bytes) -> None:
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(content)
    with user_error(f"cannot unpack {archive}"):
        unpack(archive, tmp_path / "set", max_bytes=1000)
    make_tar(archive, ("set/a", tarfile.REGTYPE, np.random.default_rng(0).bytes(900)))
    archive.write_bytes(archive.read_bytes()[:600])
    with user_error("set.tar.gz"):
        unpack(archive, tmp_path / "set", max_bytes=1000)
    assert names(tmp_path) == ["set.tar.gz"]
