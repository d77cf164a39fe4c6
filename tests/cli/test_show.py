"""`condenset show`: the summary of a set, and its picture."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from helpers.command_line import CommandRunner, read_files


@pytest.fixture
def run(condenset: CommandRunner, toy: Path) -> Path:
    """A directory with a set of two images per class."""
    assert condenset("condense", toy, "--ipc", 2, "--method", "random", "--out", "a").code == 0
    return Path("a")


def test_show_prints_a_summary_and_draws_the_images(condenset: CommandRunner, run: Path, tmp_path: Path) -> None:
    result = condenset("show", run / "condensed.safetensors")
    assert result.code == 0
    assert "6 of 1x8x8, 3 classes" in result.out
    assert "random" in result.out
    with Image.open("a/condensed.png") as image:
        image.verify()
    assert condenset("show", run, "--out", "b.png").code == 0
    before = read_files(tmp_path)
    assert "b.png exists already" in condenset("show", run, "--out", "b.png").error_line
    assert read_files(tmp_path) == before
    assert condenset("show", run, "--out", "b.png", "--overwrite").code == 0
    assert "cannot write to" in condenset("show", run, "--out", "toy.npz/x.png").error_line


def test_show_reports_an_outdated_picture(condenset: CommandRunner, run: Path) -> None:
    condenset("show", run)
    os.utime("a/condensed.png", (1, 1))
    assert "older than the set: draw it again with --overwrite" in condenset("show", run).out
    assert json.loads(condenset("show", run, "--json").out)["picture"] is None


def test_show_works_where_no_picture_can_be_written(condenset: CommandRunner, run: Path) -> None:
    Path("c/condensed.png").mkdir(parents=True)
    shutil.copy(run / "condensed.safetensors", "c")
    assert "6 of 1x8x8" in condenset("show", "c", "--overwrite").out


def test_show_prints_json(condenset: CommandRunner, run: Path, toy: Path) -> None:
    metadata = json.loads(condenset("show", run, "--json").out)
    assert (metadata["method"], metadata["source"], metadata["recipe"]["ipc"]) == ("random", str(toy), 2)
    shape = (metadata["images"], metadata["shape"], metadata["classes"], metadata["labels"])
    assert shape == (6, [1, 8, 8], 3, "hard")
    assert metadata["class_names"] == ["class 0", "class 1", "class 2"]
    assert len(metadata["mean"]) == len(metadata["std"]) == 1
    assert metadata["pixel_range"][0] < metadata["pixel_range"][1]


def test_show_takes_a_directory_with_one_set(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", "2,1,3", "--method", "random", "--out", "b")
    assert "b/sets has 2 set files: name one of them" in condenset("show", "b/sets").error_line
    Path("b/sets/random-2.safetensors").unlink()
    assert "b/sets/random-1.png" in condenset("show", "b/sets").out
