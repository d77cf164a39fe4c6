"""Run directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from condenset import UserError
from condenset.io.directories import create_unique_directory, lock_directory
from condenset.io.files import write_file
from condenset.io.metadata import CONFIG_MARK, holds_config, read_toml
from condenset.runs.directory import (
    create_run_directory,
    default_run_directory,
    remove_if_empty,
    reopen_run_directory,
)
from condenset.runs.identity import create_run
from helpers.command_line import list_files


def test_unique_directories_are_numbered(tmp_path: Path) -> None:
    assert create_unique_directory(tmp_path / "runs" / "digits").name == "digits"
    (tmp_path / "runs" / "digits-2").write_text("")
    assert create_unique_directory(tmp_path / "runs" / "digits").name == "digits-3"
    assert (tmp_path / "runs" / "digits-3").is_dir()


def test_directory_is_used_by_one_process_at_a_time(tmp_path: Path) -> None:
    in_use = pytest.raises(UserError, match="another process is using")
    with lock_directory(tmp_path), in_use, lock_directory(tmp_path):
        pass
    with lock_directory(tmp_path):
        pass  # the lock is free again


def test_temporary_files_do_not_count_as_content(tmp_path: Path) -> None:
    (tmp_path / ".recipe.toml.abc.tmp").write_text("incomplete")
    assert create_run_directory(tmp_path, overwrite=False) == tmp_path
    assert list_files(tmp_path) == []


def test_a_run_is_reopened_without_leftovers(tmp_path: Path) -> None:
    created = create_run(tmp_path, "recipe.toml", "seed = 3\n")
    (tmp_path / ".results.json.abc.tmp").write_text("incomplete")
    with reopen_run_directory(tmp_path, "recipe.toml", read_toml) as (config, identity):
        assert (config, identity) == ({"seed": 3}, created)
        assert list_files(tmp_path) == ["recipe.toml"]
        with pytest.raises(UserError, match="another process is using"), lock_directory(tmp_path):
            pass
    missing = pytest.raises(UserError, match=r"is not a run: it has no evaluation.toml")
    with missing, reopen_run_directory(tmp_path, "evaluation.toml", read_toml):
        pass


@pytest.mark.parametrize("name", ["parts/dm-1/record.json", "tasks/dm-1.00000/set-0.safetensors"])
def test_experiment_that_failed_after_a_result_is_kept(name: str, tmp_path: Path) -> None:
    create_run(tmp_path / "a", "experiment.toml", CONFIG_MARK)
    write_file(tmp_path / "a" / name, b"")
    remove_if_empty(tmp_path / "a")
    assert {"experiment.toml", name} <= set(list_files(tmp_path / "a"))


def test_experiment_that_failed_before_any_result_is_removed(tmp_path: Path) -> None:
    create_run(tmp_path / "a", "experiment.toml", CONFIG_MARK)
    write_file(tmp_path / "a/tasks/dm-1.json", b"the division into shards alone")
    remove_if_empty(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_other_files_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="must be empty or a run directory"):
            create_run_directory(tmp_path, overwrite=overwrite)
    (tmp_path / "recipe.toml").write_text("# condenset run\n")
    with pytest.raises(UserError, match="already contains a run"):
        create_run_directory(tmp_path, overwrite=False)
    create_run_directory(tmp_path, overwrite=True)
    assert list_files(tmp_path) == ["notes.txt"]


def test_recipe_of_another_program_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("# my soup\nleek = 3\n")
    (tmp_path / "results.json").write_text("[]")
    assert not holds_config(tmp_path)
    with pytest.raises(UserError, match="must be empty or a run directory"):
        create_run_directory(tmp_path, overwrite=True)
    assert list_files(tmp_path) == ["recipe.toml", "results.json"]


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("digits", "digits"),
        ("my data (1)", "my data (1)"),
        ("Zürich_2.0", "Zürich_2.0"),
        ("../../x", "x"),
        ("/etc/x", "etc-x"),
        ("a\0b\n\x1b[31m", "a-b---31m"),
        ("\udc80x", "x"),
        ("..", "run"),
        ("", "run"),
        ("ß" * 300, "ß" * 100),
    ],
)
def test_default_directory_is_a_plain_name_in_runs(name: str, directory: str) -> None:
    assert default_run_directory(name) == Path("runs") / directory
