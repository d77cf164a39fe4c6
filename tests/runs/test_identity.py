"""The identity of a run: its process never writes to the directory of another run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from condenset import UserError
from condenset.runs.context import RunContext
from condenset.runs.identity import IDENTITY, create_run, open_directory, open_run
from helpers.command_line import read_files
from helpers.loops import make_run, make_state

CONFIG = 'seed = 0\ndevice = "cpu"\n[[jobs]]\nmethod = "dm"\nlr = 1.0\nipc = [1, 2]\n[protocol]\nepochs = 3\n'


def delete(directory: Path) -> None:
    shutil.rmtree(directory)


def start_another_run(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()
    create_run(directory, "recipe.toml", CONFIG)


@pytest.mark.parametrize("change", [delete, start_another_run])
@pytest.mark.parametrize(
    "write",
    [
        lambda run: run.log_event("step"),
        lambda run: run.save_checkpoint(1, 1.0, make_state(), force=True),
        lambda run: run.delete_checkpoint(),
    ],
    ids=["event", "checkpoint", "delete checkpoint"],
)
def test_nothing_is_written_to_a_directory_that_was_deleted_or_reused(
    tmp_path: Path, change: Callable[[Path], None], write: Callable[[RunContext], None]
) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    run = make_run(directory, identity=create_run(directory, "recipe.toml", CONFIG))
    write(run)
    change(directory)
    before = read_files(tmp_path)
    with pytest.raises(UserError, match="a was deleted, or belongs to another run now: this process stops"):
        write(run)
    assert read_files(tmp_path) == before
    assert directory.exists() == (change is start_another_run)


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("seed = 0", "seed = 1", "seed"),
        ("lr = 1.0", "lr = 2.0", "lr"),
        ("[1, 2]", "[1, 3]", "ipc"),
        ("epochs = 3", "batch_size = 3", "batch_size, epochs"),
        ("[protocol]", '[[jobs]]\nmethod = "random"\n[protocol]', "method"),
    ],
)
def test_a_changed_config_is_refused(tmp_path: Path, old: str, new: str, names: str) -> None:
    created = create_run(tmp_path, "recipe.toml", CONFIG)
    assert open_run(tmp_path, "recipe.toml") == created
    (tmp_path / "recipe.toml").write_text(CONFIG.replace(old, new))
    with pytest.raises(UserError, match=f"recipe.toml has changed .*differs in {names}.: restore it or start a new"):
        open_run(tmp_path, "recipe.toml")


def test_the_place_of_computation_and_data_may_change(tmp_path: Path) -> None:
    created = create_run(tmp_path, "recipe.toml", CONFIG)
    edited = CONFIG.replace('device = "cpu"', 'device = "cuda"\ndata_dir = "/data"\nmemory_limit = 3\ntest = "/test"')
    (tmp_path / "recipe.toml").write_text(edited.replace("lr = 1.0", "lr = 1"))
    assert open_run(tmp_path, "recipe.toml") == created


def test_every_run_has_its_own_id(tmp_path: Path) -> None:
    first, second = (create_run(tmp_path, "recipe.toml", CONFIG) for _ in range(2))
    assert first.settings_hash == second.settings_hash
    assert first.content != second.content
    assert len(json.loads(second.content)["run_id"]) == 32


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"settings": 3}'])
def test_a_damaged_identity_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / IDENTITY).write_text(content)
    with pytest.raises(UserError, match=r"run.json is not the identity of a run; restore it"):
        open_directory(tmp_path, {})
