"""Unpack archives completely or not at all, and only plain files and directories with safe names."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from condenset.errors import UserError, check, format_error
from condenset.io.directories import atomic_directory
from condenset.io.files import open_file
from condenset.io.progress import show_progress

CHUNK_BYTES = 1 << 18
MAX_MEMBERS = 1_000_000
MAX_NAME_BYTES = 250  # of a path in the archive
PLAIN_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)


def unpack(archive: Path, target: Path, *, max_bytes: int, verbose: bool = True) -> None:
    """Unpack the directory `target.name` of a .tar.gz or .zip file to `target`, completely or not at all.

    Args:
        archive: The archive.
        target: The directory to create.
        max_bytes: The largest size that the archive may unpack to.
        verbose: Show progress.

    Raises:
        UserError: The archive is damaged or too large, or contains links, devices or paths outside of it.
    """
    with atomic_directory(target) as workspace, open_file(archive) as file:
        try:
            unpack_file = _unpack_zip if archive.suffix == ".zip" else _unpack_tar
            unpack_file(file, archive, workspace, max_bytes, verbose)
        except UserError as error:
            raise UserError(f"cannot unpack {archive}: {error}") from None
        except (OSError, EOFError, ValueError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"cannot unpack {archive}: {format_error(error)}") from None
        if not (workspace / target.name).is_dir():
            raise UserError(f"{archive} must contain the directory {target.name!r}, but does not")
        if hasattr(os, "sync"):  # one call for up to a hundred thousand files
            os.sync()


class _BoundedGzipFile(gzip.GzipFile):
    """A stream that refuses long reads. The header of a tar member can declare gigabytes for its name."""

    def read(self, size: int | None = -1) -> bytes:
        is_short = size is not None and 0 <= size <= CHUNK_BYTES
        check(is_short, f"a header of an archive must have at most {CHUNK_BYTES} bytes", size)
        return super().read(size)


def _unpack_tar(file: IO[bytes], archive: Path, directory: Path, max_bytes: int, verbose: bool) -> None:
    size = count = 0
    progress = show_progress(f"unpacking {archive.name}", max_bytes, unit="B", verbose=verbose)
    with _BoundedGzipFile(fileobj=file) as stream, tarfile.open(fileobj=stream, mode="r:") as tar, progress as advance:
        for member in tar:
            count, size = count + 1, size + member.size
            _check_totals(count, size, max_bytes)
            path = _member_path(member.name, directory, is_plain=member.type in PLAIN_TYPES)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            else:
                _write_member(tar.extractfile(member), path)
            advance(member.size)


def _unpack_zip(file: IO[bytes], archive: Path, directory: Path, max_bytes: int, verbose: bool) -> None:
    with zipfile.ZipFile(file) as packed:
        members = packed.infolist()
        _check_totals(len(members), sum(member.file_size for member in members), max_bytes)
        with show_progress(f"unpacking {archive.name}", len(members), verbose=verbose) as advance:
            for member in members:
                mode = stat.S_IFMT(member.external_attr >> 16)
                path = _member_path(member.filename, directory, is_plain=mode in (0, stat.S_IFREG, stat.S_IFDIR))
                if member.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    _write_member(packed.open(member), path)  # reads at most the size that was checked
                advance(1)


def _check_totals(count: int, size: int, max_bytes: int) -> None:
    check(count <= MAX_MEMBERS, f"an archive must contain at most {MAX_MEMBERS} files", count)
    check(size <= max_bytes, f"an archive must unpack to at most {max_bytes} bytes", size)


def _member_path(name: str, directory: Path, *, is_plain: bool) -> Path:
    """Return where to write a member; raise a UserError for links, devices and names that are unsafe."""
    path = PurePosixPath(name)
    num_bytes = len(name.encode(errors="surrogateescape"))
    check(num_bytes <= MAX_NAME_BYTES, f"paths in an archive must have at most {MAX_NAME_BYTES} bytes", num_bytes)
    check(is_plain, "an archive must contain only files and directories, no links or devices", name)
    is_inside = not path.is_absolute() and ".." not in path.parts and not {"\\", ":", "\0"} & set(name)
    check(is_inside, "an archive must not contain a path outside of it", name)
    return directory / path


def _write_member(source: IO[bytes] | None, path: Path) -> None:
    assert source is not None, "not a file"
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
