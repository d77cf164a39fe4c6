"""The formats by name, and how a set is exported."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from condenset.data.formats.content import METADATA, SET_FILE, SetContent, is_exported
from condenset.data.formats.folder import write_folder
from condenset.data.formats.hugging_face import write_hugging_face
from condenset.data.formats.npz import write_npz
from condenset.data.formats.pt import write_pt
from condenset.data.formats.webdataset import write_webdataset
from condenset.errors import UserError, check_choice, check_path, check_path_encoding, option
from condenset.io.directories import atomic_directory, sync_contents, wrap_os_errors
from condenset.io.user_directories import expand_user


@dataclass(frozen=True, kw_only=True)
class SetFormat:
    """A file format of condensed sets.

    Attributes:
        name: The name in `--to`.
        summary: What is written.
        write: Writes a set to a path that does not exist, or replaces the file there.
        suffix: The suffix of the file. Empty: the format is a directory.
    """

    name: str
    summary: str
    write: Callable[..., None]
    suffix: str = ""


FORMATS = {
    item.name: item
    for item in (
        SetFormat(
            name="folder",
            summary="PNG files by class, with the exact values in images.npy",
            write=write_folder,
        ),
        SetFormat(name="npz", summary="NumPy arrays in one file", write=write_npz, suffix=".npz"),
        SetFormat(name="hf", summary="a Hugging Face dataset with a dataset card", write=write_hugging_face),
        SetFormat(name="webdataset", summary="WebDataset tar shards", write=write_webdataset),
        SetFormat(
            name="pt",
            summary="normalised images and labels as in the repositories of DC, DSA and DM",
            write=write_pt,
            suffix=".pt",
        ),
    )
}


def export_content(
    content: SetContent,
    name: str,
    path: str | os.PathLike[str],
    save: Callable[[Path], None],
    *,
    overwrite: bool,
) -> None:
    """Write a set in another format, completely or not at all.

    Args:
        content: The set.
        name: The name of the format.
        path: The file or directory to write.
        save: Writes the set file that a directory contains, from which the set is imported.
        overwrite: Replace an existing file, or a directory that was exported before.

    Raises:
        UserError: The path has a wrong suffix, exists already or cannot be written, or the format cannot store the set.
    """
    check_choice("the format", name, FORMATS)
    check_path("path", path)
    check_path_encoding(path)
    target, set_format = expand_user(path), FORMATS[name]
    if target.suffix.lower() != set_format.suffix and set_format.suffix:
        raise UserError(f"the path of the format {name} must end in {set_format.suffix}, but got '{target}'")
    if content.is_whitened and set_format.suffix:
        directories = ", ".join(item.name for item in FORMATS.values() if not item.suffix)
        raise UserError(f"the format {name} cannot store the ZCA whitening of a set: use {directories}, or save it")
    _check_target(target, overwrite=overwrite, is_directory=not set_format.suffix)
    if set_format.suffix:
        with wrap_os_errors(target):
            set_format.write(content, target)
        return
    with atomic_directory(target, overwrite=overwrite) as workspace, wrap_os_errors(target):
        directory = workspace / target.name
        set_format.write(content, directory)
        save(directory / SET_FILE)
        (directory / METADATA).write_text(content.to_json(), encoding="utf-8")
        sync_contents(directory)


def _check_target(target: Path, *, overwrite: bool, is_directory: bool) -> None:
    """Check that a path can be written. Only files, and directories that condenset exported, are replaced."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        replace = option("overwrite", True)
        raise UserError(f"{target} exists already; choose another path or overwrite it with {replace}")
    if target.is_dir() != is_directory or target.is_symlink():
        kind = "a directory" if is_directory else "a file"
        raise UserError(f"{target} must be {kind} to be overwritten: choose another path")
    with wrap_os_errors(target, "read"):
        names = {path.name for path in target.iterdir()} if is_directory else set()
    if names and not is_exported(target):
        raise UserError(f"{target} is not an exported set, and is not overwritten: choose another path")
    if ".git" in names:
        raise UserError(f"{target} is a Git repository, and is not overwritten: choose another path")


def find_format(path: Path) -> str:
    """Return the name of the format of a file, or "directory"; raise a UserError if the suffix is unknown."""
    if path.is_dir():
        return "directory"
    suffixes = {item.suffix: item.name for item in FORMATS.values() if item.suffix} | {".pth": "pt"}
    if path.suffix.lower() not in suffixes:
        hint = " It is a set file already." if path.suffix == ".safetensors" else ""
        raise UserError(f"a set must be a directory or end in {', '.join(suffixes)}, but got '{path}'.{hint}")
    return suffixes[path.suffix.lower()]
