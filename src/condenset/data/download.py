"""Fetching the public datasets: resumed where it stopped, checked before it is named, unpacked whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from condenset.data.guards import guard, new_folder
from condenset.data.sources import SOURCES, Download, data_folder, require_source
from condenset.errors import UserError, check, one_line
from condenset.progress import progress_bar

CHUNK = 1 << 18
ATTEMPTS = 4  # in a row without a byte gained
PAUSE = 0.5  # seconds before the second attempt; doubled before each further one
TIMEOUT = 30.0
MAY_PASS = (408, 425, 429)  # what a server says when it may answer later, besides every 5xx
MEMBERS_MOST = 1_000_000


class _Cut(Exception):
    """The connection failed in a way that another attempt may mend."""


def get(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Download and unpack a named dataset unless it is there already; give the folder it is in."""
    key = require_source(name)
    source, folder = SOURCES[key], data_folder(data_dir)
    if source.bundled:
        return folder
    found = source.locate(folder)
    if found is not None:
        return found
    if not source.downloads:
        raise UserError(f"{key} cannot be downloaded: {source.by_hand} {folder / source.homes[0]}")
    for item in source.downloads:
        _get_one(item, folder)
    found = source.locate(folder)
    if found is None:
        home = folder / source.homes[0]
        raise UserError(f"what was downloaded for {key} lacks {source.missing(home)[0]!r} in {home}")
    return found


def _get_one(item: Download, folder: Path) -> None:
    target = folder / item.unpacks_to
    if item.unpacks_to and target.exists():
        raise UserError(f"{target} exists but is not whole; move it away, then get it again")
    path = folder / item.path
    fetch(item.url, path, digest=item.digest, size=item.size)
    if item.unpacks_to:
        unpack(path, target, limit=item.unpacked_size)
        with guard(f"cannot remove {path}"):
            path.unlink()


def fetch(url: str, path: Path, *, digest: str, size: int | None = None) -> None:
    """Download a file to `path`, going on from PATH.part if there is one; it gets its name once its digest is right.

    digest: 'md5:HEX' or 'sha256:HEX'; size: about how many bytes to expect; more than twice that is refused.
    """
    check(url.startswith(("http://", "https://")), "a download address must begin with http:// or https://", url)
    check(digest.partition(":")[0] in ("md5", "sha256"), "a digest must begin with md5: or sha256:", digest)
    part = path.with_name(path.name + ".part")
    with guard(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and file_digest(path, digest) == digest:
            return
        resumed = part.exists()
    limit = None if size is None else 2 * size + CHUNK
    _download(url, part, size, limit)
    found = file_digest(part, digest)
    if found != digest and resumed:  # what lay there may have been the start of something else
        part.unlink()
        _download(url, part, size, limit)
        found = file_digest(part, digest)
    if found != digest:
        part.unlink()
        raise UserError(f"{url} must have the digest {digest}, but got {found}; the file was not kept")
    with guard(f"cannot write {path}"):
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)


def file_digest(path: Path, like: str) -> str:
    """'ALGORITHM:HEX' of a file, in the algorithm of the digest `like`."""
    algorithm = like.partition(":")[0]
    with guard(f"cannot read {path}"), path.open("rb") as file:
        # md5 is what the sets' makers published; it guards against accidents
        hasher = lambda: hashlib.new(algorithm, usedforsecurity=False)  # noqa: E731
        return f"{algorithm}:{hashlib.file_digest(file, hasher).hexdigest()}"


def _download(url: str, part: Path, size: int | None, limit: int | None) -> None:
    """Bring PART to the whole length of the file, with a few attempts."""
    failures = 0
    with progress_bar(part.name.removesuffix(".part"), size, "B") as advance:
        advance(_length(part))
        while True:
            before = _length(part)
            try:
                _transfer(url, part, limit, advance)
                return
            except _Cut as cut:
                gained = _length(part) > before
                failures = 1 if gained else failures + 1
                if failures >= ATTEMPTS:
                    raise UserError(f"cannot download {url}: {cut}; the same command goes on from here") from None
            time.sleep(PAUSE * 2 ** (failures - 1))


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _transfer(url: str, part: Path, limit: int | None, advance: Callable[[int], None]) -> None:
    """One attempt: ask for what PART lacks and append it."""
    start = _length(part)
    headers = {"User-Agent": "condenset", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    response = _open(urllib.request.Request(url, headers=headers), part, start)
    if response is None:
        return
    with response:
        if response.status != 206:  # the whole file comes, asked for or not
            advance(-start)
            start = 0
        elif not (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
            part.unlink(missing_ok=True)
            raise _Cut("the server sent another range than the one asked for")
        length = response.headers.get("Content-Length") or ""
        total = start + int(length) if length.isdecimal() else None
        _refuse_beyond(limit, total or 0, url, part)
        with guard(f"cannot write {part}"), part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response):
                start += len(chunk)
                _refuse_beyond(limit, start, url, part)
                file.write(chunk)
                advance(len(chunk))
    if total is not None and start < total:
        raise _Cut(f"the connection was cut after {start} of {total} bytes")


def _open(request: urllib.request.Request, part: Path, start: int) -> http.client.HTTPResponse | None:
    """The response, or None where the server says that PART has every byte already."""
    url = request.full_url
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
        return response
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and start:
                if error.headers.get("Content-Range") == f"bytes */{start}":
                    return None
                part.unlink(missing_ok=True)
                raise _Cut("the part on disk is longer than the file") from None
            if error.code < 500 and error.code not in MAY_PASS:
                raise UserError(f"cannot download {url}: the server says {error.code} {error.reason}") from None
            raise _Cut(f"the server says {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = error.reason
        raise _Cut(one_line(reason) if isinstance(reason, BaseException) else str(reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(one_line(error)) from None


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(one_line(error)) from None
        if not chunk:
            return
        yield chunk


def _refuse_beyond(limit: int | None, amount: int, url: str, part: Path) -> None:
    if limit is not None and amount > limit:
        part.unlink(missing_ok=True)
        raise UserError(f"{url} must have at most {limit} bytes, but got {amount}; nothing was kept")


def unpack(archive: Path, target: Path, *, limit: int) -> None:
    """Unpack the folder TARGET.name of a .tar.gz or .zip to `target`, at most `limit` bytes, whole or not at all."""
    with new_folder(target) as workshop:
        try:
            if archive.suffix == ".zip":
                _unpack_zip(archive, workshop, limit)
            else:
                _unpack_tar(archive, workshop, limit)
        except OSError as error:
            raise UserError(f"cannot unpack {archive}: {one_line(error)}") from error
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, zlib.error) as error:
            raise UserError(f"{archive} cannot be unpacked: {one_line(error)}") from None
        if not (workshop / target.name).is_dir():
            raise UserError(f"{archive} must hold the folder {target.name!r}, but does not")
        if hasattr(os, "sync"):  # one call for what may be a hundred thousand files
            os.sync()


def _check_members(count: int, size: int, limit: int) -> None:
    check(count <= MEMBERS_MOST, f"an archive must hold at most {MEMBERS_MOST} files", count)
    check(size <= limit, f"an archive must unpack to at most {limit} bytes", size)


def _unpack_tar(archive: Path, folder: Path, limit: int) -> None:
    size = count = 0
    with tarfile.open(archive, "r:*") as tar, progress_bar(f"unpacking {archive.name}", limit, "B") as advance:
        for member in tar:
            count, size = count + 1, size + member.size
            _check_members(count, size, limit)
            tar.extract(member, folder, filter="data")
            advance(member.size)


def _unpack_zip(archive: Path, folder: Path, limit: int) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        _check_members(len(members), sum(member.file_size for member in members), limit)
        with progress_bar(f"unpacking {archive.name}", len(members), "files") as advance:
            for member in members:
                inside = PurePosixPath(member.filename)
                if inside.is_absolute() or ".." in inside.parts or "\\" in member.filename or ":" in member.filename:
                    raise UserError(f"{archive} holds {member.filename!r}, which leads out of it")
                if member.is_dir():
                    (folder / inside).mkdir(parents=True, exist_ok=True)
                else:
                    _copy_member(packed, member, folder / inside)
                advance(1)


def _copy_member(packed: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(member) as source, path.open("xb") as file:  # it reads no more than the size it declared
        shutil.copyfileobj(source, file, CHUNK)
