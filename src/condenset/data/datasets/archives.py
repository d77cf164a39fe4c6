"""Unpack archives completely or not at all, and only plain files and directories with safe names."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from condenset.errors import UserError, check, format_error
from condenset.io.directories import atomic_directory
from condenset.io.files import open_file
from condenset.io.progress import show_progress


def unpack(archive: Path, target: Path, *, max_bytes: int) -> None:
    """Unpack the directory `target.name` of a .tar.gz or .zip file to `target`, completely or not at all.

    Args:
        archive: The archive.
        target: The directory to create.
        max_bytes: The largest size that the archive may unpack to.

    Raises:
        UserError: The archive is damaged or too large, or contains links, devices or paths outside of it.
    """
    with atomic_directory(target) as workspace, open_file(archive) as file:
        try:
            unpack_file = _unpack_zip if archive.suffix == ".zip" else _unpack_tar
            with show_progress(f"unpacking {archive.name}", max_bytes, unit="B") as advance:
                unpack_file(file, workspace, max_bytes, advance)
        except UserError as error:
            raise UserError(f"cannot unpack {archive}: {error}") from None
        except (OSError, EOFError, ValueError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(f"cannot unpack {archive}: {format_error(error)}") from None
        if not (workspace / target.name).is_dir():
            raise UserError(f"{archive} must contain the directory {target.name!r}, but does not")
        if hasattr(os, "sync"):  # one call for up to a hundred thousand files
            os.sync()


def _unpack_tar(file: IO[bytes], directory: Path, max_bytes: int, advance: Callable[[int], None]) -> None:
    size = 0
    with tarfile.open(fileobj=file, mode="r:gz") as tar:
        for member in tar:
            size += member.size
            _check_member(member.name, size, max_bytes, is_plain=member.isfile() or member.isdir())
            tar.extract(member, directory, filter="data")
            advance(member.size)


def _unpack_zip(file: IO[bytes], directory: Path, max_bytes: int, advance: Callable[[int], None]) -> None:
    size = 0
    with zipfile.ZipFile(file) as packed:
        for member in packed.infolist():
            size += member.file_size
            mode = stat.S_IFMT(member.external_attr >> 16)
            _check_member(member.filename, size, max_bytes, is_plain=mode in (0, stat.S_IFREG, stat.S_IFDIR))
            packed.extract(member, directory)  # reads at most the size that was checked
            advance(member.file_size)


def _check_member(name: str, size: int, max_bytes: int, *, is_plain: bool) -> None:
    """Check one member, and the size of all members up to it."""
    path = PurePosixPath(name)
    check(size <= max_bytes, f"an archive must unpack to at most {max_bytes} bytes", size)
    check(is_plain, "an archive must contain only files and directories, no links or devices", name)
    is_inside = not path.is_absolute() and ".." not in path.parts and not {"\\", ":", "\0"} & set(name)
    check(is_inside, "an archive must not contain a path outside of it", name)
