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
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from condenset.data import DATASETS, download_dataset, download_file, load
from condenset.data.datasets.mnist import IDX_FILES
from condenset.data.datasets.sources import Download
from condenset.errors import UserError
from helpers.data_files import ExpectUserError, replace_dataset, write_cifar10, write_mnist

pytestmark = pytest.mark.filterwarnings("ignore:.*should have")  # the test files have few images

CONTENT = np.random.default_rng(0).bytes(700_000)
DIGEST = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Serve `files`. Each request uses the next of `behaviours`: ok, cut, ignore-range, wrong-range or a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.behaviours: list[str] = []
        self.ranges: list[str | None] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: these tests cut connections."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        behaviour = self.server.behaviours.pop(0) if self.server.behaviours else "ok"
        requested = self.headers.get("Range")
        self.server.ranges.append(requested)
        content = self.server.files.get(self.path)
        if content is None or behaviour.isdigit():
            self.send_error(int(behaviour) if behaviour.isdigit() else 404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", requested)[1]) if requested and behaviour != "ignore-range" else 0
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
    monkeypatch.setattr("condenset.data.datasets.download.PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("no_proxy", "*")
    with Server() as http_server:
        thread = threading.Thread(target=http_server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield http_server
        http_server.shutdown()
        thread.join()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_download(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    download_file(f"{server.address}/file", path, digest=DIGEST, size=len(CONTENT))
    assert path.read_bytes() == CONTENT and names(path.parent) == ["file"]
    download_file(f"{server.address}/file", path, digest=f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert server.ranges == [None]  # a complete file is not downloaded again


def test_cut_connections_are_resumed(server: Server, tmp_path: Path) -> None:
    server.behaviours = ["cut", "500", "drop", "cut"]
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]
    assert server.ranges == [None, "bytes=300000-", "bytes=300000-", "bytes=300000-", "bytes=600000-"]


def test_later_call_resumes_from_the_part(server: Server, tmp_path: Path, user_error: ExpectUserError) -> None:
    server.behaviours = ["cut", *["drop"] * 3]
    with user_error("run the same command again to resume"):
        download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert names(tmp_path) == ["file.part"]
    server.ranges.clear()
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and server.ranges == ["bytes=300000-"]


@pytest.mark.parametrize("behaviour", ["ignore-range", "wrong-range", "no-length"])
def test_servers_that_do_not_support_resuming(server: Server, tmp_path: Path, behaviour: str) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.behaviours = [behaviour]
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_complete_part_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]
    assert server.ranges == []


@pytest.mark.parametrize("part", [CONTENT + b"more", bytes(len(CONTENT))])
def test_a_part_as_long_as_the_file_is_downloaded_again(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    (tmp_path / "file").write_bytes(b"an older file")
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_part_of_another_file_is_deleted(server: Server, tmp_path: Path, user_error: ExpectUserError) -> None:
    (tmp_path / "file.part").write_bytes(b"something else")
    with user_error(DIGEST, "the file was deleted; run the same command again"):
        download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert (tmp_path / "file").read_bytes() == CONTENT and names(tmp_path) == ["file"]


def test_wrong_content_is_deleted(server: Server, tmp_path: Path, user_error: ExpectUserError) -> None:
    wrong = "md5:" + "0" * 32
    with user_error(wrong, DIGEST):
        download_file(f"{server.address}/file", tmp_path / "file", digest=wrong)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("path", "behaviour", "code"), [("/none", "ok", "404"), ("/file", "403", "403")])
def test_client_errors_are_not_retried(
    server: Server, tmp_path: Path, user_error: ExpectUserError, path: str, behaviour: str, code: str
) -> None:
    server.behaviours = [behaviour]
    with user_error(f"cannot download {server.address}{path}: the server returned {code}"):
        download_file(f"{server.address}{path}", tmp_path / "file", digest=DIGEST)
    assert len(server.ranges) == 1 and names(tmp_path) == []


def test_server_errors_are_retried(server: Server, tmp_path: Path, user_error: ExpectUserError) -> None:
    server.behaviours = ["503"] * 9
    with user_error("503"):
        download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert len(server.ranges) == 4


def test_refused_connection(tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.data.datasets.download.PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        port = free_socket.getsockname()[1]
    with user_error("refused"):
        download_file(f"http://127.0.0.1:{port}/x", tmp_path / "file", digest=DIGEST)


@pytest.mark.parametrize(("behaviour", "size"), [("huge", len(CONTENT)), ("no-length", 1000)])
def test_too_long_file_is_rejected(
    server: Server, tmp_path: Path, user_error: ExpectUserError, behaviour: str, size: int
) -> None:
    server.behaviours = [behaviour]
    with user_error("must have at most"):
        download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST, size=size)
    assert names(tmp_path) == []


def test_write_errors_are_user_errors(server: Server, tmp_path: Path, user_error: ExpectUserError) -> None:
    (tmp_path / "blocked").write_text("a file instead of a directory")
    with user_error("cannot write"):
        download_file(f"{server.address}/file", tmp_path / "blocked" / "file", digest=DIGEST)
    if Path("/dev/full").exists():
        os.symlink("/dev/full", tmp_path / "file.part")
        with user_error("No space left on device"):
            download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
        assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://host/x"])
def test_other_schemes_are_rejected(tmp_path: Path, user_error: ExpectUserError, url: str) -> None:
    with user_error("http://"):
        download_file(url, tmp_path / "file", digest=DIGEST)


def make_tar_bytes(directory: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        tar.add(directory, directory.name)
    return file.getvalue()


def serve_dataset(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, items: list[tuple[bytes, Download]]
) -> None:
    """Make a dataset download from the local server."""
    downloads = []
    for content, download in items:
        address = f"/{Path(download.path).name}"
        server.files[address] = content
        digest = f"md5:{hashlib.md5(content).hexdigest()}"
        url = server.address + address
        downloads.append(dataclasses.replace(download, url=url, digest=digest, size=len(content)))
    replace_dataset(monkeypatch, name, downloads=tuple(downloads))


def test_download_dataset_unpacks_cifar10(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "source" / "cifar-10-batches-py")
    (download,) = DATASETS["cifar10"].downloads
    serve_dataset(
        server, monkeypatch, "cifar10", [(make_tar_bytes(tmp_path / "source" / "cifar-10-batches-py"), download)]
    )
    data_dir = tmp_path / "data_dir"
    assert download_dataset("CIFAR-10", data_dir) == data_dir / "cifar-10-batches-py"
    assert names(data_dir) == ["cifar-10-batches-py"]  # no archive, no temporary files
    assert len(load("cifar10", data_dir=data_dir).train) == 100
    download_dataset("cifar10", data_dir)
    assert len(server.ranges) == 1


def test_load_downloads_a_missing_dataset(
    server: Server, tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path / "source" / "cifar-10-batches-py")
    (download,) = DATASETS["cifar10"].downloads
    archive = make_tar_bytes(tmp_path / "source" / "cifar-10-batches-py")
    serve_dataset(server, monkeypatch, "cifar10", [(archive, download)])
    with user_error("download it with download=True"):
        load("cifar10", data_dir=tmp_path / "data")
    for _ in range(2):
        assert len(load("cifar10", data_dir=tmp_path / "data", download=True).train) == 100
    assert len(server.ranges) == 1
    assert load("digits", download=True).train.num_classes == 10
    with user_error("imagenet cannot be downloaded: request it at image-net.org"):
        load("imagenet", data_dir=tmp_path / "data", download=True)


def test_download_dataset_downloads_only_missing_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "source")
    packed = [gzip.compress((tmp_path / "source" / file).read_bytes()) for file in IDX_FILES]
    serve_dataset(server, monkeypatch, "mnist", list(zip(packed, DATASETS["mnist"].downloads, strict=True)))
    data_dir = tmp_path / "data_dir"
    download_dataset("mnist", data_dir)
    assert len(load("mnist", data_dir=data_dir).train) == 40 and len(server.ranges) == 4
    (data_dir / "MNIST" / "raw" / f"{IDX_FILES[1]}.gz").unlink()
    download_dataset("mnist", data_dir)
    assert len(server.ranges) == 5


def test_download_dataset_errors(tmp_path: Path, user_error: ExpectUserError) -> None:
    assert download_dataset("digits", tmp_path) == tmp_path and names(tmp_path) == []
    with user_error("image-net.org"):
        download_dataset("imagenet", tmp_path)
    with user_error("did you mean 'mnist'?"):
        download_dataset("mnits", tmp_path)
    (tmp_path / "cifar-10-batches-py").mkdir()
    with user_error("exists but is incomplete"):
        download_dataset("cifar10", tmp_path)


def test_files_can_be_saved_by_hand(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "source")
    packed = [gzip.compress((tmp_path / "source" / file).read_bytes()) for file in IDX_FILES]
    serve_dataset(server, monkeypatch, "mnist", list(zip(packed, DATASETS["mnist"].downloads, strict=True)))
    server.files.clear()
    with pytest.raises(UserError) as caught:
        download_dataset("mnist", tmp_path / "data")
    host = server.address.removeprefix("http://")
    assert str(caught.value).startswith(f"the download of mnist from {host} failed: the server returned 404 Not Found;")
    lines = [line.strip().split(" as ") for line in caught.value.details.splitlines()]
    assert [url for url, _ in lines] == [download.url for download in DATASETS["mnist"].downloads]
    for content, (_, path) in zip(packed, lines, strict=True):
        Path(path).write_bytes(content)
    download_dataset("mnist", tmp_path / "data")
    assert len(load("mnist", data_dir=tmp_path / "data").train) == 40


def test_download_is_synced_before_it_is_renamed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), replace(*paths))[1])
    download_file(f"{server.address}/file", tmp_path / "file", digest=DIGEST)
    assert calls == ["sync", "rename"]
