"""Repeat a run from its recipe, resume it, change its data, overwrite it."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.command_line import (
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    list_files,
    read_files,
    read_records,
    replace_test_images,
    sets_equal,
    write_npz,
)
from helpers.data_files import make_classes, save_image
from helpers.evaluations import warning_lines


def test_a_recipe_repeats_its_run_exactly(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, "--ipc", 2, *TINY, "--seed", 7, "--init", "noise", "--out", "a")
    assert condenset("run", "--config", "a/recipe.toml", "--out", "b").code == 0
    for name in ("recipe.toml", "grid.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for name in list_files(tmp_path / "a"):
        if name.endswith(".safetensors"):
            assert sets_equal(tmp_path / "a" / name, tmp_path / "b" / name)
    first, second = (read_records(tmp_path / name) for name in "ab")
    assert [record["accuracies"] for record in first] == [record["accuracies"] for record in second]


def test_options_take_precedence_over_the_config(condenset: CommandRunner, toy: Path) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--seed", 7, "--out", "a")
    other = write_npz(Path("other.npz"), seed=5)
    options = ("--ipc", 3, "--seed", 8, "--iterations", 2, "--lr", 0.5, "--nets", 1, "--epochs", 4)
    assert condenset("run", other, "--config", "a/recipe.toml", *options, "--method", "dm", "--out", "b").code == 0
    before, after = (tomllib.loads(Path(name, "recipe.toml").read_text()) for name in "ab")
    assert after["dataset"] == str(other.absolute())
    assert after["seed"] == 8
    assert after["jobs"] == [{**before["jobs"][1], "ipc": 3, "iterations": 2, "lr": 0.5}]
    assert after["protocol"] == {**before["protocol"], "num_networks": 1, "epochs": 4}


def test_resuming_a_finished_run_prints_its_result(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    result = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    before = read_files(tmp_path)
    resumed = condenset("resume", "a")
    assert (resumed.code, resumed.out) == (0, result.out)
    assert read_files(tmp_path) == before
    assert "Condensing" in result.err and "Condensing" not in resumed.err
    assert "The run is finished." in resumed.err.splitlines()
    next(Path("a/sets").glob("dm-*.safetensors")).unlink()
    resumed = condenset("resume", "a")
    assert "Condensing" in resumed.err and "The run is finished." not in resumed.err


@pytest.mark.parametrize(
    ("change", "changes_training_images"),
    [(lambda path: write_npz(path, seed=1), True), (replace_test_images, False)],
    ids=["all images", "test images"],
)
def test_resuming_with_changed_data_is_an_error(
    change: Callable[[Path], object],
    changes_training_images: bool,
    condenset: CommandRunner,
    toy: Path,
    tmp_path: Path,
) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    assert condenset("condense", "--config", "a/recipe.toml", "--out", "b").code == 0
    shutil.copy(toy, "original.npz")
    change(toy)
    changed = shutil.copy(toy, tmp_path / "changed.npz")
    before = read_files(tmp_path)
    result = condenset("resume", "a", "--dataset", changed)
    assert result.error_line == f"{changed} is not the dataset that a began with"
    assert condenset("resume", "a", "--dataset", "original.npz").code == 0
    # A run that only condenses does not depend on the test images.
    assert condenset("resume", "b").code == (2 if changes_training_images else 0)
    assert "has changed since a began" in condenset("resume", "a").error_line
    assert condenset("run", "--config", "a/recipe.toml", "--out", "c").error_line.startswith(f"{toy} ")
    assert read_files(tmp_path) == before


def test_overwrite_removes_only_the_files_of_a_run(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, "--ipc", 2, *TINY, "--out", "a")
    condenset("show", "a")
    Path("a/notes.txt").write_text("notes of the user")
    Path("a/sets/other.safetensors").write_text("a file of the user")
    (tmp_path / "a" / ".checkpoint.x1.tmp").write_text("left by a kill")
    before = read_files(tmp_path)
    assert "condenset resume a" in condenset("run", toy, "--ipc", 1, *TINY, "--out", "a").error_line
    assert read_files(tmp_path) == before
    condense = ("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 1)
    assert condenset(*condense, "--out", "a", "--overwrite").code == 0
    new_files = ["events.jsonl", "grid.png", "recipe.toml", "results.json", "sets/dm-1.safetensors"]
    assert list_files(tmp_path / "a") == sorted([*new_files, "notes.txt", "sets/other.safetensors"])
    assert Path("a/notes.txt").read_text() == "notes of the user"


def test_a_directory_that_is_not_a_run_is_never_overwritten(
    condenset: CommandRunner, toy: Path, tmp_path: Path
) -> None:
    Path("photos").mkdir()
    Path("photos/cat.jpg").write_text("a photo")
    Path("cooking").mkdir()
    Path("cooking/recipe.toml").write_text("soup = 'leek'")
    before = read_files(tmp_path)
    for directory in ("photos", "cooking"):
        for overwrite in ((), ("--overwrite",)):
            result = condenset("run", toy, "--ipc", 1, *TINY, "--out", directory, *overwrite)
            assert f"{directory} must be empty or a run directory" in result.error_line
    assert read_files(tmp_path) == before


def test_a_stopped_run_repeats_the_options_of_its_resume(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    toy.rename("new.npz")
    Path("a/results.json").unlink()  # the run is unfinished
    monkeypatch.setattr("condenset.pipeline.run.execute_plan", stop)
    result = condenset("resume", "a", "--dataset", "new.npz", "--device", "cpu", "--per-class", "--json")
    assert result.code == 130
    assert "Condensing new to 1 image per class" in result.err
    assert result.err.endswith(
        "stopped. Resume with: condenset resume a --device cpu --dataset new.npz --per-class --json\n"
    )


def test_a_stopped_run_repeats_its_options_for_the_output(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("condenset.pipeline.run.execute_plan", stop)
    result = condenset("run", toy, "--ipc", 1, *TINY, "--out", "a", "--per-class")
    assert result.err.endswith("stopped. Resume with: condenset resume a --per-class\n")


def test_remarks_on_the_files_are_not_repeated(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "photos" / "train", ["cat", "dog"], count=4)
    make_classes(tmp_path / "photos" / "valid", ["cat", "dog"], count=1, seed=1)
    save_image(tmp_path / "photos" / "test" / "0.png")
    (tmp_path / "photos" / "train" / "cat" / "9.heic").touch()
    options = ("--method", "random", "--ipc", 1, *TINY_NETWORK, *TINY_EVALUATION, "--no-whole", "--out", "a")
    unused, left_out = warning_lines(condenset, "run", "photos", *options)
    assert "'test' has no class folders and is not used" in unused and "1 image file left out" in left_out
    Path("a/results.json").unlink()
    assert warning_lines(condenset, "resume", "a") == []
