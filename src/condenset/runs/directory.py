"""Create, check and clear the directories of runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import torch

from condenset.engine.threads import MAX_THREADS, use_threads
from condenset.errors import UserError, check_path, check_path_encoding
from condenset.io.directories import (
    create_unique_directory,
    ensure_writable,
    find_temporary_files,
    lock_directory,
    remove_temporary_files,
    wrap_os_errors,
)
from condenset.io.metadata import CONFIG_FILES, check_no_run, holds_config
from condenset.io.user_directories import expand_user
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY, RunIdentity, open_directory, open_run
from condenset.runs.snapshots import SNAPSHOTS

T = TypeVar("T")

FILES = (  # of a run directory, in addition to sets/ and networks/
    "results.json",
    "condensed.safetensors",  # written by Python calls
    "condensed.png",  # written by `condenset show`
    "grid.png",
    "chart.svg",
    "chart.png",
    "figure.svg",
    "figure.png",
    "table.md",
    "report.html",
    "events.jsonl",
    "status.json",
    "checkpoint",
    "checkpoint.previous",
    IDENTITY,
    *CONFIG_FILES,  # removed last: one of them marks a run directory
)
RANKING = "ranking.json"  # a ranking may share the directory of a run, which does not remove its files
RANKING_CHECKPOINT = "ranking.checkpoint"
WORK_FILES = {  # of Python calls
    "condensed.safetensors",
    "condensed.png",
    "events.jsonl",
    "checkpoint",
    "checkpoint.previous",
    RANKING,
    RANKING_CHECKPOINT,
    f"{RANKING_CHECKPOINT}.previous",
    "networks",
    "tasks",
}
MAX_NAME_BYTES = 200  # of a directory; most file systems allow 255, and a number may be appended


def default_run_directory(name: str) -> Path:
    """Return the directory in `runs` for this name, which may come from a file: it becomes a plain directory name."""
    safe = "".join(char if char.isalnum() or char in " ._-+=,@()" else "-" for char in name).lstrip(" .-")
    short = safe.encode()[:MAX_NAME_BYTES].decode(errors="ignore").rstrip()
    return Path("runs") / (short or "run")


@contextlib.contextmanager
def claim_run_directory(out: Path | None, default: Path, *, overwrite: bool) -> Iterator[Path]:
    """Create the directory of a new run, and lock it for the duration of the block.

    Args:
        out: The directory. None: a new one, named after `default`.
        default: Name of the directory if `out` is None; a number is appended if it exists.
        overwrite: Replace an earlier run in `out`.
    """
    if out:
        ensure_writable(out)
    directory = out or create_unique_directory(default)
    with lock_directory(directory):
        create_run_directory(directory, overwrite=overwrite)
        yield directory


@contextlib.contextmanager
def reopen_run_directory(
    directory: Path, config_name: str, read_config: Callable[[Path], T]
) -> Iterator[tuple[T, RunIdentity]]:
    """Open the directory of a run to resume, and lock it for the duration of the block.

    Args:
        directory: The directory.
        config_name: Name of the config file, such as recipe.toml.
        read_config: Read and validate the config file.

    Yields:
        The config and the identity of the run.

    Raises:
        UserError: There is no such run, its config file is invalid or has changed, or another process uses it.
    """
    path = directory / config_name
    if not path.is_file():
        raise UserError(f"{directory} is not a run: it has no {config_name}")
    with lock_directory(directory):
        config = read_config(path)
        identity = open_run(directory, config_name)
        with wrap_os_errors(directory):
            remove_temporary_run_files(directory)
        yield config, identity


def create_run_directory(out: Path, *, overwrite: bool) -> Path:
    """Create the directory of a run, or clear it if it contains an earlier run to overwrite."""
    check_output_directory(out, overwrite=overwrite)
    with wrap_os_errors(out):
        if out.is_dir():
            _clear(out)
        ensure_writable(out)
    return out


def check_output_directory(out: Path | None, *, overwrite: bool) -> None:
    """Check that a run may use the directory `out`: it is empty, or contains an earlier run to overwrite.

    If `out` is None, the run gets a new directory, which has nothing to overwrite.
    """
    if out is None:
        if overwrite:
            raise UserError("--overwrite needs --out: without it every run gets a new directory")
        return
    check_path_encoding(out)
    existing = next((path for path in (out, *out.parents) if os.path.lexists(path)), out)
    with wrap_os_errors(out):
        if os.path.lexists(existing) and not existing.is_dir():
            raise UserError(f"{out} must be a directory, but {existing} is not one: choose another --out")
        leftovers = {*find_temporary_files(out, _written_names(out)), out / IDENTITY}  # of a killed process
        if not out.is_dir() or not set(out.iterdir()) - leftovers:
            return
    if not holds_config(out):
        raise UserError(f"{out} must be empty or a run directory, but contains other files: choose another --out")
    if not overwrite:
        check_no_run(out)


@contextlib.contextmanager
def open_work_directory(directory: str | os.PathLike[str], run: RunContext) -> Iterator[Path]:
    """Set, lock and yield the directory of a resumable call from Python, such as `condense(directory=...)`.

    It is created if needed. It must be empty, a run directory, or contain the identity and other files of earlier
    calls. All calls compute with the number of CPU threads of the first one, so that a resumed call has the same
    result.
    """
    check_path("directory", directory)
    directory = expand_user(directory)
    check_path_encoding(directory)
    with wrap_os_errors(directory):
        names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    expected = WORK_FILES if IDENTITY in names else set()
    others = {name for name in names - expected if not name.startswith(".")}
    if others and not holds_config(directory):
        content = f"contains '{min(others)}'" + (f" and no {IDENTITY}" if others <= WORK_FILES else "")
        raise UserError(f"{directory} must be empty or come from an earlier call, but {content}: use another directory")
    ensure_writable(directory)
    with lock_directory(directory):
        remove_temporary_run_files(directory)
        run.directory = directory
        run.identity = open_directory(directory, {"threads": torch.get_num_threads()})
        threads = run.identity.settings.get("threads")
        is_valid = type(threads) is int and 1 <= threads <= MAX_THREADS
        with use_threads(threads if is_valid and run.compute.threads else None):
            yield directory


def _clear(directory: Path) -> None:
    """Remove the files of a run, and nothing else."""
    remove_temporary_run_files(directory)
    for name, pattern in (("sets", r"\w+-\d+(to\d+)?"), ("networks", r"[0-9a-f]{12}|whole")):  # METHOD-IPC, a hash
        for path in (directory / name).glob("*"):
            if path.suffix in (".safetensors", ".png") and re.fullmatch(pattern, path.stem):
                path.unlink()  # `condenset show` writes the picture of a set
        with contextlib.suppress(OSError):  # it does not exist, or contains other files
            (directory / name).rmdir()
    for path in (directory / SNAPSHOTS).glob("*/*.safetensors"):
        if re.fullmatch(r"\w+-\d+(to\d+)?/\d+", f"{path.parent.name}/{path.stem}"):
            path.unlink()
    (directory / SNAPSHOTS / "scores.json").unlink(missing_ok=True)
    for folder in (*(directory / SNAPSHOTS).glob("*"), directory / SNAPSHOTS):
        with contextlib.suppress(OSError):
            folder.rmdir()
    for path in (directory / "tensorboard").glob("events.out.tfevents.*"):
        path.unlink()
    with contextlib.suppress(OSError):
        (directory / "tensorboard").rmdir()
    if (directory / "experiment.toml").is_file():
        shutil.rmtree(directory / "parts", ignore_errors=True)
    if holds_config(directory):
        shutil.rmtree(directory / "tasks", ignore_errors=True)  # unfinished work on an engine
    for name in FILES:
        (directory / name).unlink(missing_ok=True)


def remove_if_empty(directory: Path) -> None:
    """Remove the directory of an experiment that failed before it wrote any result, also that of a task."""
    if not any(path.is_file() for pattern in ("parts/**/*", "tasks/*/*") for path in directory.glob(pattern)):
        _clear(directory)
        with contextlib.suppress(OSError):  # it contains other files
            directory.rmdir()


def remove_temporary_run_files(directory: Path) -> None:
    """Remove the temporary files that a killed run left behind."""
    remove_temporary_files(directory, _written_names(directory))


def _written_names(directory: Path) -> list[str]:
    """Return the names of all files that runs write, as glob patterns."""
    names = [*FILES, RANKING, RANKING_CHECKPOINT, "sets/*.safetensors", "sets/*.png", "networks/*.safetensors"]
    names.append(f"{SNAPSHOTS}/*/*.safetensors")
    return names + (["parts/**/*"] if (directory / "experiment.toml").is_file() else [])
