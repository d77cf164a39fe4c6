"""Paths in home directories; the directories of datasets and of the user's cache, also without a home directory."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import warnings
from pathlib import Path

from condenset.errors import UserError, check_path, check_path_encoding
from condenset.io.directories import wrap_os_errors


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Replace `~` and `~user` at the beginning of a path; raise a UserError if there is no such home directory."""
    expanded = Path(os.path.expanduser(path))
    if expanded.parts[:1] and expanded.parts[0].startswith("~") and not os.path.lexists(expanded.parts[0]):
        rule = "a path that begins with ~ must be in a home directory that exists"
        raise UserError(f"{rule}, but got '{expanded}': give the full path")
    return expanded


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path, which a file can store, with `~` and `..` replaced."""
    absolute = expand_user(path).absolute()
    return str(absolute.resolve() if ".." in absolute.parts else absolute)


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return `data_dir`, or else $CONDENSET_DATA, or else `condenset` in the user's cache directory.

    Without a home directory that can be used, as in some containers, it is a temporary directory of the user.
    """
    chosen = data_dir if data_dir is not None else os.environ.get("CONDENSET_DATA")
    if not chosen:
        return user_cache_directory() / "condenset"
    check_path("data_dir", chosen)
    check_path_encoding(chosen)
    return expand_user(chosen)


def user_cache_directory() -> Path:
    """Return the cache directory of the user, or a temporary one if there is no home directory that can be used."""
    try:
        directory = _platform_cache_directory()
    except RuntimeError:  # no HOME, and the system does not know the user
        return _temporary_cache_directory()
    # os.path, because Path.exists raises for a home directory without access.
    existing = next((path for path in (directory, *directory.parents) if os.path.exists(path)), directory)
    return directory if existing == directory or os.access(existing, os.W_OK) else _temporary_cache_directory()


def _platform_cache_directory() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _temporary_cache_directory() -> Path:
    """Create a directory that only this user can write to, and warn where it is."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    with wrap_os_errors("the temporary directory"):
        directory = Path(tempfile.gettempdir()) / f"condenset-{user}"
    with wrap_os_errors(directory):
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == user and not status.st_mode & 0o022
    hint = "choose a directory for datasets with --data-dir or CONDENSET_DATA"
    if not is_private:
        raise UserError(f"there is no home directory, and others can write to {directory}: {hint}")
    message = f"there is no home directory, so datasets are stored in {directory}: {hint}"
    warnings.warn(message, stacklevel=1)  # one place in the code, so that Python shows it once
    return directory
