"""Links, pipes, large files and names from outside in the place of a run's files: one line, and no file changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import condenset as cs
from helpers.command_line import TINY_NETWORK, CommandRunner, read_files

RANDOM = ("--method", "random", "--ipc", 1, *TINY_NETWORK, "--nets", 1, "--epochs", 1, "--no-whole")


def make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_large(path: Path) -> None:
    """Replace a file by one of 3 GiB. It is sparse, so it takes no disk space."""
    path.touch()
    os.truncate(path, 3 << 30)


@pytest.fixture
def run_directory(condenset: CommandRunner, toy: Path, tmp_path: Path) -> Path:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    return tmp_path / "a"


@pytest.mark.parametrize("replace", [make_pipe, make_large])
@pytest.mark.parametrize("name", ["recipe.toml", "results.json", "sets/random-1.safetensors"])
def test_resume_reads_only_regular_files_of_limited_size(
    condenset: CommandRunner, run_directory: Path, name: str, replace: Callable[[Path], None]
) -> None:
    replace(run_directory / name)
    assert condenset("resume", run_directory).error_line


@pytest.mark.parametrize("replace", [make_pipe, make_large])
def test_config_must_be_a_regular_file_of_limited_size(
    condenset: CommandRunner, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    replace(tmp_path / "config.toml")
    message = "it is a pipe or a device" if replace is make_pipe else "must have at most"
    assert message in condenset("run", "--config", "config.toml").error_line


@pytest.mark.parametrize("name", ["sets", "events.jsonl", "checkpoint", "networks", "results.json", "sets/other.png"])
def test_run_directory_with_a_link_is_not_written_to(
    condenset: CommandRunner, toy: Path, run_directory: Path, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    (run_directory / name).rename(outside) if (run_directory / name).exists() else outside.mkdir()
    (run_directory / name).symlink_to(outside)
    before = read_files(tmp_path)
    message = f"must not contain symbolic links, but got {run_directory / name}: remove it"
    for command in (("resume", run_directory), ("run", toy, *RANDOM, "--out", run_directory, "--overwrite")):
        assert condenset(*command).error_line.endswith(message)
    assert read_files(tmp_path) == before


def test_python_calls_refuse_links_in_their_directory(toy: Path, tmp_path: Path) -> None:
    train = cs.load(toy).train
    cs.condense(train, "random", ipc=1, directory=tmp_path / "work")
    (tmp_path / "work" / "events.jsonl").unlink(missing_ok=True)
    (tmp_path / "work" / "events.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(cs.UserError, match="must not contain symbolic links"):
        cs.condense(train, "random", ipc=1, directory=tmp_path / "work")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "esc\0aped"])
def test_name_in_an_imported_dataset_does_not_choose_the_directory(
    condenset: CommandRunner, toy: Path, tmp_path: Path, name: str
) -> None:
    condenset("data", "import", toy, "mine")
    path = tmp_path / "data" / "imported" / "mine" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": name}))
    work = tmp_path / "deep" / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    assert condenset("condense", "mine", "--ipc", 1, "--method", "random").code == 0
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["work"]
    (recipe,) = work.glob("runs/*/recipe.toml")
    assert recipe.parent.name in ("escaped", "tmp-escaped", "esc-aped")
