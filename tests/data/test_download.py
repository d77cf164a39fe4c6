from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from data_files import Refused, make_classes, write_cifar10, write_mnist

from condenset.data import SOURCES, fetch, get, load
from condenset.data.download import unpack
from condenset.data.sources import IDX_FILES, Download

CONTENT = np.random.default_rng(0).bytes(700_000)
DIGEST = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serves `files`; each request takes the next of `behaviours`: ok, cut, ignore-range, wrong-range or a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.behaviours: list[str] = []
        self.ranges: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Cut connections are what these tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        behaviour = self.server.behaviours.pop(0) if self.server.behaviours else "ok"
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        content = self.server.files.get(self.path)
        if content is None or behaviour.isdigit():
            self.send_error(int(behaviour) if behaviour.isdigit() else 404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and behaviour != "ignore-range" else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            first = start + 1 if behaviour == "wrong-range" else start
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        declared = 10**12 if behaviour == "huge" else len(content) - start
        if behaviour != "no-length":
            self.send_header("Content-Length", str(declared))
        self.end_headers()
        if behaviour == "cut":
            self.wfile.write(content[start : start + 300_000])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        elif behaviour != "drop":
            self.wfile.write(content[start:])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("condenset.data.download.PAUSE", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_download(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    fetch(f"{server.address}/file", path, digest=DIGEST, size=len(CONTENT))
    assert path.read_bytes() == CONTENT and names(path.parent) == ["file"]
    fetch(f"{server.address}/file", path, digest=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert server.ranges == [None]  # what is there and right is not fetched again


def test_cut_connections_are_resumed(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["cut", "500", "drop", "cut"]
    fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]
    assert server.ranges == [None, "bytes=300000-", "bytes=300000-", "bytes=300000-", "bytes=600000-"]


def test_a_later_call_goes_on_from_the_part(server: Server, tmp_path: Path, refused: Refused) -> None:
    server.behaviours = ["cut", *["drop"] * 3]
    with refused("the same command goes on from here"):
        fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert names(tmp_path) == ["file.part"]
    server.ranges.clear()
    fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.ranges == ["bytes=300000-"]


@pytest.mark.parametrize("behaviour", ["ignore-range", "wrong-range", "no-length"])
def test_servers_that_do_not_resume_as_asked(server: Server, tmp_path: Path, behaviour: str) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.behaviours = [behaviour]
    fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b"something else", bytes(len(CONTENT))])
def test_any_part_left_behind_ends_well(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    (tmp_path / "file").write_bytes(b"an older file")
    fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_wrong_content_is_not_kept(server: Server, tmp_path: Path, refused: Refused) -> None:
    wrong = "md5:" + "0" * 32
    with refused(wrong, DIGEST):
        fetch(f"{server.address}/file", tmp_path / "file", digest=wrong)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("path", "behaviour", "part"), [("/none", "ok", "404"), ("/file", "403", "403")])
def test_refusals_of_the_server_are_final(
    server: Server, tmp_path: Path, refused: Refused, path: str, behaviour: str, part: str
) -> None:
    server.behaviours = [behaviour]
    with refused(f"cannot download {server.address}{path}: the server says {part}"):
        fetch(f"{server.address}{path}", tmp_path / "file", digest=DIGEST)
    assert len(server.ranges) == 1 and names(tmp_path) == []


def test_a_server_in_trouble_is_asked_a_few_times(server: Server, tmp_path: Path, refused: Refused) -> None:
    server.behaviours = ["503"] * 9
    with refused("503"):
        fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert len(server.ranges) == 4


def test_nobody_there(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.data.download.PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with refused("refused"):
        fetch(f"http://127.0.0.1:{port}/x", tmp_path / "file", digest=DIGEST)


@pytest.mark.parametrize(("behaviour", "size"), [("huge", len(CONTENT)), ("no-length", 1000)])
def test_far_too_long_a_file_is_refused(
    server: Server, tmp_path: Path, refused: Refused, behaviour: str, size: int
) -> None:
    server.behaviours = [behaviour]
    with refused("must have at most"):
        fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST, size=size)
    assert names(tmp_path) == []


def test_what_the_disk_refuses_takes_one_line(server: Server, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with refused("cannot write"):
        fetch(f"{server.address}/file", tmp_path / "blocked" / "file", digest=DIGEST)
    if Path("/dev/full").exists():
        os.symlink("/dev/full", tmp_path / "file.part")
        with refused("No space left on device"):
            fetch(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
        assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://host/x"])
def test_other_schemes_are_refused(tmp_path: Path, refused: Refused, url: str) -> None:
    with refused("http://"):
        fetch(url, tmp_path / "file", digest=DIGEST)


def tar_of(folder: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        tar.add(folder, folder.name)
    return file.getvalue()


def offer(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, items: list[tuple[bytes, Download]]) -> None:
    """Let the local server stand for the official one."""
    downloads = []
    for content, item in items:
        address = f"/{Path(item.path).name}"
        server.files[address] = content
        digest = f"md5:{hashlib.md5(content).hexdigest()}"
        url = server.address + address
        downloads.append(dataclasses.replace(item, url=url, digest=digest, size=len(content)))
    monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], downloads=tuple(downloads)))


def test_get_unpacks_cifar10(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "made" / "cifar-10-batches-py")
    (item,) = SOURCES["cifar10"].downloads
    offer(server, monkeypatch, "cifar10", [(tar_of(tmp_path / "made" / "cifar-10-batches-py"), item)])
    home = tmp_path / "home"
    assert get("CIFAR-10", home) == home / "cifar-10-batches-py"
    assert names(home) == ["cifar-10-batches-py"]  # neither the archive nor anything temporary
    assert len(load("cifar10", data_dir=home).train) == 100
    get("cifar10", home)
    assert len(server.ranges) == 1


def test_get_leaves_mnist_packed_and_fetches_what_is_missing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "made")
    packed = [gzip.compress((tmp_path / "made" / file).read_bytes()) for file in IDX_FILES]
    offer(server, monkeypatch, "mnist", list(zip(packed, SOURCES["mnist"].downloads, strict=True)))
    home = tmp_path / "home"
    get("mnist", home)
    assert len(load("mnist", data_dir=home).train) == 40 and len(server.ranges) == 4
    (home / "MNIST" / "raw" / f"{IDX_FILES[1]}.gz").unlink()
    get("mnist", home)
    assert len(server.ranges) == 5


def test_get_says_what_it_cannot_get(tmp_path: Path, refused: Refused) -> None:
    assert get("digits", tmp_path) == tmp_path and names(tmp_path) == []
    with refused("image-net.org"):
        get("imagenet", tmp_path)
    with refused("did you mean 'mnist'?"):
        get("mnits", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with refused("exists but is not whole"):
        get("cifar10", tmp_path)


def make_tar(path: Path, *members: tuple[str, bytes, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = content.decode() if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content))


GOOD = ("set/a", tarfile.REGTYPE, b"12345")


@pytest.mark.parametrize(
    ("member", "part"),
    [
        (("../evil", tarfile.REGTYPE, b"x"), "cannot be unpacked"),
        (("set/link", tarfile.SYMTYPE, b"/etc/passwd"), "cannot be unpacked"),
        (("set/link", tarfile.SYMTYPE, b"../../evil"), "cannot be unpacked"),
        (("set/hard", tarfile.LNKTYPE, b"../../evil"), "cannot be unpacked"),
        (("set/pipe", tarfile.FIFOTYPE, b""), "cannot be unpacked"),
        (("set/large", tarfile.REGTYPE, bytes(2000)), "at most 1000 bytes"),
    ],
)
def test_hostile_tar_is_refused(tmp_path: Path, refused: Refused, member: tuple[str, bytes, bytes], part: str) -> None:
    archive = tmp_path / "set.tar.gz"
    make_tar(archive, GOOD, member)
    with refused(part):
        unpack(archive, tmp_path / "in" / "set", limit=1000)
    assert names(tmp_path) == ["in", "set.tar.gz"] and names(tmp_path / "in") == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "set/../../evil", "set\\..\\evil", "c:evil"])
def test_zip_that_leads_out_is_refused(tmp_path: Path, refused: Refused, name: str) -> None:
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("set/a", "12345")
        info = zipfile.ZipInfo("x")
        info.filename = name
        packed.writestr(info, "x")
    with refused("leads out of it"):
        unpack(archive, tmp_path / "in" / "set", limit=1000)
    assert names(tmp_path) == ["in", "set.zip"] and names(tmp_path / "in") == []


def test_zip_is_unpacked_whole_or_not_at_all(tmp_path: Path, refused: Refused) -> None:
    archive, target = tmp_path / "set.zip", tmp_path / "in" / "set"
    make_classes(tmp_path / "made" / "set")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.mkdir("set")
        for file in sorted((tmp_path / "made").rglob("*.png")):
            packed.write(file, file.relative_to(tmp_path / "made"))
    with refused("unpack to at most 100 bytes"):
        unpack(archive, target, limit=100)
    with refused("must hold the folder 'other'"):
        unpack(archive, tmp_path / "in" / "other", limit=10**6)
    content = archive.read_bytes()
    for broken in (content[: len(content) // 2], content[:100] + bytes(50) + content[150:], b""):
        archive.write_bytes(broken)
        with refused("set.zip cannot be unpacked"):
            unpack(archive, target, limit=10**6)
        assert names(tmp_path / "in") == []
    archive.write_bytes(content)
    unpack(archive, target, limit=10**6)
    assert names(target) == ["a", "b"] and names(tmp_path / "in") == ["set"]
    assert target.stat().st_mode == (tmp_path / "made").stat().st_mode  # not the private mode of a temporary folder


@pytest.mark.parametrize("content", [b"", b"text", tarfile.BLKTYPE * 500])
def test_broken_tar_is_refused(tmp_path: Path, refused: Refused, content: bytes) -> None:
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(content)
    with refused("set.tar.gz cannot be unpacked"):
        unpack(archive, tmp_path / "set", limit=1000)
    make_tar(archive, ("set/a", tarfile.REGTYPE, np.random.default_rng(0).bytes(900)))
    archive.write_bytes(archive.read_bytes()[:600])
    with refused("set.tar.gz"):
        unpack(archive, tmp_path / "set", limit=1000)
    assert names(tmp_path) == ["set.tar.gz"]


def test_a_download_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("name"), replace(*paths))[1])
    monkeypatch.setattr("condenset.data.download._download", lambda url, part, size, limit: part.write_bytes(b"x"))
    fetch("http://x/a", tmp_path / "a", digest="md5:9dd4e461268c8034f5c8564e155c67a6")
    assert done == ["sync", "name"]
