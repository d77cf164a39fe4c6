"""Folders that runs, pools and rankings write into: whose they are, who is at work in them, what a kill left."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from condenset.errors import UserError, check_path
from condenset.files import held

FILES = (  # of a run's folder, beside sets/ and networks/
    "results.json",
    "condensed.safetensors",
    "condensed.png",  # the picture that `show` draws
    "grid.png",
    "chart.svg",
    "chart.png",
    "figure.svg",
    "figure.png",
    "table.md",
    "events.jsonl",
    "checkpoint",
    "experiment.toml",
    "recipe.toml",  # these two are removed last: they are what makes a folder a run's
)
RANKING = "ranking.json"  # these two may lie there too, but are no run's to remove
HALF_RANKED = "ranking.checkpoint"


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn a full disk, a read-only folder and their like into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {error.filename2 or path}: {error.strerror or error}") from None


def new_folder(out: Path, *, overwrite: bool) -> Path:
    """Make a run's folder; one with an earlier run in it is kept, unless asked."""
    check_free(out, overwrite=overwrite)
    with writable(out):
        if out.is_dir():
            _clear(out)
        probe(out)
    return out


def probe(folder: Path) -> None:
    """Make a folder, if it is not there, and see now whether it can be written to."""
    check_path(folder)
    with writable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def check_free(out: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds an earlier run, unless it may be overwritten, or anything else, in any case."""
    check_path(out)
    with writable(out):
        if not out.is_dir() or not set(out.iterdir()) - set(_leftovers(out)):
            return
    if not is_run(out):
        raise UserError(f"{out} is not empty and not a run of condenset: choose another --out")
    if not overwrite:
        hint = f"go on with 'condenset resume {out}', choose another --out, or --overwrite it"
        raise UserError(f"{out} holds a run already: {hint}")


def is_empty(folder: Path) -> bool:
    """Whether the folder holds nothing but hidden files, or is not there."""
    with writable(folder):
        return not folder.is_dir() or all(path.name.startswith(".") for path in folder.iterdir())


def is_run(folder: Path) -> bool:
    """Whether the folder holds a recipe that condenset wrote: somebody else's may be one for soup."""
    paths = [folder / name for name in ("recipe.toml", "experiment.toml")]
    with writable(folder):
        return any(path.is_file() and path.read_bytes().startswith(b"# condenset ") for path in paths)


def _clear(folder: Path) -> None:
    """Remove what a run writes, and nothing else."""
    sweep(folder)
    for name, pattern in (("sets", r"\w+-\d+"), ("networks", r"[0-9a-f]{12}")):  # METHOD-IPC, a hash
        for path in (folder / name).glob("*.safetensors"):
            if re.fullmatch(pattern, path.stem):
                path.unlink()
        with contextlib.suppress(OSError):  # not there, or something else is in it
            (folder / name).rmdir()
    if (folder / "experiment.toml").is_file():
        shutil.rmtree(folder / "parts", ignore_errors=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def take_back(folder: Path) -> None:
    """Remove an experiment's folder again if it failed before it did anything."""
    if not any(path.is_file() for path in (folder / "parts").rglob("*")):
        _clear(folder)
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()


def sweep(folder: Path) -> None:
    """Remove the temporary files that a kill left behind."""
    for path in _leftovers(folder):
        path.unlink(missing_ok=True)


def _leftovers(folder: Path) -> list[Path]:
    patterns = [f".{name}.*.tmp" for name in (*FILES, RANKING, HALF_RANKED)]
    patterns += ["sets/.*.safetensors.*.tmp", "networks/.*.safetensors.*.tmp"]
    if (folder / "experiment.toml").is_file():
        patterns.append("parts/**/.*.tmp")
    return [path for pattern in patterns for path in folder.glob(pattern)]


def fresh_folder(folder: Path) -> Path:
    """Make `folder`, or `folder-2`, `folder-3`, … whichever is not there yet."""
    check_path(folder)
    number, path = 1, folder
    with writable(folder):
        while True:
            try:
                path.mkdir(parents=True)
                return path
            except FileExistsError:
                number += 1
                path = folder.with_name(f"{folder.name}-{number}")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run's folder; the lock goes with this process, however it ends."""
    with contextlib.ExitStack() as stack:
        with writable(folder):
            free = stack.enter_context(held(folder))
        if free is False:
            raise UserError(f"{folder} is being worked on by another process: wait for it, or stop it")
        yield
