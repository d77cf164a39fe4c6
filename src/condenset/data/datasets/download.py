"""Download datasets: resume interrupted downloads, check digests, unpack archives."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from condenset.data.datasets.archives import unpack
from condenset.data.datasets.sources import DATASETS, Download, require_registered_name
from condenset.errors import UserError, check, format_error
from condenset.io.directories import wrap_os_errors
from condenset.io.progress import limit_progress, show_progress
from condenset.io.user_directories import data_directory

CHUNK_BYTES = 1 << 18
MAX_FAILURES = 4  # attempts in a row that transfer nothing
PAUSE_SECONDS = 0.5  # before the second attempt; doubled before each further one
TIMEOUT_SECONDS = 30.0
RETRY_CODES = (408, 416, 425, 429)  # HTTP codes after which another attempt can succeed, besides every 5xx


class DownloadError(UserError):
    """A file cannot be downloaded because of the network or the server.

    Args:
        url: The address of the file.
        reason: Why the download failed.
    """

    def __init__(self, url: str, reason: object) -> None:
        super().__init__(f"cannot download {url}: {reason}; run the same command again to resume")
        self.host, self.reason = urllib.parse.urlsplit(url).netloc, reason


class _TransferError(Exception):
    """The connection failed, and another attempt can succeed."""


def download_dataset(name: str, data_dir: str | os.PathLike[str] | None = None, *, verbose: bool = True) -> Path:
    """Download and unpack a registered dataset unless it is complete; return the directory that it is in."""
    registered = require_registered_name(name)
    source, directory = DATASETS[registered], data_directory(data_dir)
    if source.is_bundled:
        return directory
    path = source.locate(directory)
    if path is not None:
        return path
    target = directory / source.directories[0]
    if not source.downloads:
        raise UserError(f"{registered} cannot be downloaded: {source.instructions} {target}")
    try:
        with limit_progress(verbose):
            for download in source.downloads:
                _download_and_unpack(download, directory)
    except DownloadError as error:
        hint = "run the command again to resume; without a connection, first save these files by hand"
        files = [f"  {download.url} as {directory / download.path}" for download in source.downloads]
        message = f"the download of {registered} from {error.host} failed: {error.reason}; {hint}:"
        raise UserError(message, details="\n".join(files)) from None
    path = source.locate(directory)
    if path is None:
        raise UserError(f"the download of {registered} lacks {source.missing_files(target)[0]!r} in {target}")
    return path


def _download_and_unpack(download: Download, directory: Path) -> None:
    target = directory / download.unpacks_to
    if download.unpacks_to and target.exists():
        raise UserError(f"{target} exists but is incomplete; move it away, then download it again")
    path = directory / download.path
    download_file(download.url, path, digest=download.digest, size=download.size)
    if download.unpacks_to:
        unpack(path, target, max_bytes=download.unpacked_size)
        with wrap_os_errors(path, "remove"):
            path.unlink()


def download_file(url: str, path: Path, *, digest: str, size: int | None = None) -> None:
    """Download a file, resuming from PATH.part if it exists. The file gets its name after its digest is checked.

    Args:
        url: The address.
        path: Where to store the file.
        digest: "md5:HEX" or "sha256:HEX".
        size: The approximate size in bytes; a file of more than twice this size is an error.

    Raises:
        UserError: The file cannot be downloaded or written, or has another digest.
    """
    check(url.startswith(("http://", "https://")), "a download address must begin with http:// or https://", url)
    check(digest.partition(":")[0] in ("md5", "sha256"), "a digest must begin with md5: or sha256:", digest)
    part = path.with_name(path.name + ".part")
    with wrap_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and file_digest(path, digest) == digest:
            return
    actual = file_digest(part, digest) if part.is_file() else ""  # complete if a kill prevented its renaming
    if actual != digest:
        _download_with_retries(url, part, size)
        actual = file_digest(part, digest)
    if actual != digest:
        part.unlink()  # the part of an earlier call may be the beginning of another file
        hint = "the file was deleted; run the same command again"
        raise UserError(f"{url} must have the digest {digest}, but got {actual}: {hint}")
    with wrap_os_errors(path):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)


def file_digest(path: Path, like: str) -> str:
    """Return "ALGORITHM:HEX" of a file, with the algorithm of the digest `like`."""
    algorithm = like.partition(":")[0]
    with wrap_os_errors(path, "read"), path.open("rb") as file:
        # The authors of the datasets published md5 digests. They protect against damage, not against attacks.
        hasher = lambda: hashlib.new(algorithm, usedforsecurity=False)  # noqa: E731
        return f"{algorithm}:{hashlib.file_digest(file, hasher).hexdigest()}"


def _download_with_retries(url: str, part: Path, size: int | None) -> None:
    """Download the file to `part` completely, with several attempts."""
    max_bytes = None if size is None else 2 * size + CHUNK_BYTES
    failures = 0
    with show_progress(part.name.removesuffix(".part"), size, unit="B") as advance:
        advance(_bytes_on_disk(part))
        while True:
            before = _bytes_on_disk(part)
            try:
                _transfer(url, part, max_bytes, advance)
                return
            except _TransferError as error:
                failures = 1 if _bytes_on_disk(part) > before else failures + 1
                if not part.exists():  # it was not the beginning of the file
                    advance(-before)
                if failures >= MAX_FAILURES:
                    raise DownloadError(url, error) from None
            time.sleep(PAUSE_SECONDS * 2 ** (failures - 1))


def _bytes_on_disk(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _transfer(url: str, part: Path, max_bytes: int | None, advance: Callable[[int], None]) -> None:
    """Make one attempt: request what `part` lacks and append it."""
    received = _bytes_on_disk(part)
    headers = {"User-Agent": "condenset", "Accept-Encoding": "identity"}
    if received:
        headers["Range"] = f"bytes={received}-"
    with _send_request(urllib.request.Request(url, headers=headers), part) as response:
        if response.status != 206:  # the server ignored the range and sends the whole file
            advance(-received)
            received = 0
        elif not (response.headers.get("Content-Range") or "").startswith(f"bytes {received}-"):
            part.unlink(missing_ok=True)
            raise _TransferError("the server sent a different range than requested")
        length = response.headers.get("Content-Length") or ""
        total = received + int(length) if length.isdecimal() else None
        _check_length(total or 0, max_bytes, url, part)
        with wrap_os_errors(part), part.open("ab" if received else "wb") as file:
            for chunk in _read_chunks(response):
                received += len(chunk)
                _check_length(received, max_bytes, url, part)
                file.write(chunk)
                advance(len(chunk))
    if total is not None and received < total:
        raise _TransferError(f"the connection was cut after {received} of {total} bytes")


def _send_request(request: urllib.request.Request, part: Path) -> http.client.HTTPResponse:
    """Return the response. A part that is not the beginning of the file is deleted."""
    url = request.full_url
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
        return response
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:  # the part has all bytes of the file, or more
                part.unlink(missing_ok=True)
            if error.code < 500 and error.code not in RETRY_CODES:
                raise DownloadError(url, f"the server returned {error.code} {error.reason}") from None
            raise _TransferError(f"the server returned {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise _TransferError(format_error(reason) if isinstance(reason, BaseException) else str(reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _TransferError(format_error(error)) from None


def _read_chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _TransferError(format_error(error)) from None
        if not chunk:
            return
        yield chunk


def _check_length(length: int, max_bytes: int | None, url: str, part: Path) -> None:
    """Delete the part and raise a UserError if the file is too long."""
    if max_bytes is not None and length > max_bytes:
        part.unlink(missing_ok=True)
        raise UserError(f"{url} must have at most {max_bytes} bytes, but got {length}; the file was deleted")
