"""`condenset show`: the summary of a set, and its picture."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from helpers.command_line import TINY_NETWORK, CommandRunner, read_files, read_records, write_npz
from helpers.evaluations import QUICK, evaluate


@pytest.fixture
def run(condenset: CommandRunner, toy: Path) -> Path:
    """A directory with a set of two images per class."""
    assert condenset("condense", toy, "--ipc", 2, "--method", "random", "--out", "a").code == 0
    return Path("a")


def test_show_prints_a_summary_and_draws_the_images(condenset: CommandRunner, run: Path, tmp_path: Path) -> None:
    result = condenset("show", run / "sets" / "random-2.safetensors")
    assert result.code == 0
    assert "6 of 1x8x8, 3 classes" in result.out
    assert re.search(r"^per class +2$", result.out, re.M)
    assert re.search(r"^classes +'class 0', 'class 1', 'class 2'$", result.out, re.M)
    assert "random" in result.out
    with Image.open("a/sets/random-2.png") as image:
        image.verify()
    assert condenset("show", run, "--out", "b.png").code == 0
    before = read_files(tmp_path)
    assert "b.png exists already" in condenset("show", run, "--out", "b.png").error_line
    assert read_files(tmp_path) == before
    assert condenset("show", run, "--out", "b.png", "--overwrite").code == 0
    assert "cannot write to" in condenset("show", run, "--out", "toy.npz/x.png").error_line


def test_show_never_replaces_a_set_by_its_picture(condenset: CommandRunner, run: Path, tmp_path: Path) -> None:
    file, before = run / "sets" / "random-2.safetensors", read_files(tmp_path)
    for out in (file, "x.svg", "x"):
        assert "--out must name a .png file" in condenset("show", run, "--out", out, "--overwrite").error_line
    assert read_files(tmp_path) == before


def test_show_reports_an_outdated_picture(condenset: CommandRunner, run: Path) -> None:
    condenset("show", run)
    os.utime("a/sets/random-2.png", (1, 1))
    assert "older than the set: draw it again with --overwrite" in condenset("show", run).out
    assert json.loads(condenset("show", run, "--json").out)["picture"] is None


def test_show_works_where_no_picture_can_be_written(condenset: CommandRunner, run: Path) -> None:
    Path("c/random-2.png").mkdir(parents=True)
    shutil.copy(run / "sets" / "random-2.safetensors", "c")
    assert "6 of 1x8x8" in condenset("show", "c", "--overwrite").out


def test_show_prints_json(condenset: CommandRunner, run: Path, toy: Path) -> None:
    metadata = json.loads(condenset("show", run, "--json").out)
    assert (metadata["method"], metadata["source"], metadata["recipe"]["ipc"]) == ("random", str(toy), 2)
    shape = (metadata["images"], metadata["shape"], metadata["classes"], metadata["labels"])
    assert shape == (6, [1, 8, 8], 3, "hard")
    assert metadata["class_names"] == ["class 0", "class 1", "class 2"]
    assert len(metadata["mean"]) == len(metadata["std"]) == 1
    assert metadata["pixel_range"][0] < metadata["pixel_range"][1]


def test_show_lists_and_draws_the_sets_of_a_run(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", "2,1,3", "--method", "random", "--out", "b")
    lines = condenset("show", "b").out.splitlines()
    assert [line.split()[:5] for line in lines[1:4]] == [
        [f"random-{ipc}", "toy", "random", str(3 * ipc), "of"] for ipc in (2, 1, 3)
    ]
    assert lines[-2:] == ["sets     b/sets", "picture  b/grid.png"]
    assert all(re.search(r" [\d.]+ to [\d.]+$", line) for line in lines[1:4])  # without the nominal range
    assert max(map(len, lines)) <= 80
    metadata = json.loads(condenset("show", "b", "--json").out)
    assert [(item["recipe"]["ipc"], item["picture"]) for item in metadata] == [(ipc, "b/grid.png") for ipc in (2, 1, 3)]
    assert condenset("show", "b/sets", "--out", "all.png").code == 0
    with Image.open("all.png") as all_sets, Image.open("b/grid.png") as grid:
        assert all_sets.size == grid.size
    assert "b/sets/grid.png" in condenset("show", "b/sets").out


def test_sets_of_different_datasets_are_not_drawn_together(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    other = write_npz(tmp_path / "other.npz", (4, 4))
    for name, dataset in (("a", toy), ("b", other)):
        condenset("condense", dataset, "--ipc", 1, "--method", "random", "--out", name)
        (tmp_path / "both").mkdir(exist_ok=True)
        shutil.copy(f"{name}/sets/random-1.safetensors", f"both/{name}.safetensors")
    result = condenset("show", "both")
    assert result.code == 0 and "\nb  " in result.out
    assert "picture  none: the sets have different classes or image shapes" in result.out


def test_show_states_the_time_of_the_trained_networks(condenset: CommandRunner, toy: Path) -> None:
    pool = ("--set", "pool_size=1", "--set", "pool_epochs=1")
    condenset("condense", toy, "--ipc", 1, "--method", "tgdd", *pool, "--iterations", 1, *TINY_NETWORK, "--out", "b")
    lines = dict(line.split(maxsplit=1) for line in condenset("show", "b").out.splitlines())
    seconds = json.loads(condenset("show", "b", "--json").out)["pool"]["seconds"]
    assert lines["networks"] == f"trained in {seconds:.3g} s"


def test_show_describes_stored_and_decoded_images(condenset: CommandRunner, toy: Path) -> None:
    options = ("--method", "dm", "--set", "partition=2", "--iterations", 1, *TINY_NETWORK)
    condenset("condense", toy, "--ipc", 2, *options, "--out", "b")
    lines = dict(line.split(maxsplit=1) for line in condenset("show", "b").out.splitlines())
    assert lines["images"] == "24 of 1x8x8, stored as 6 (partition 2, bilinear), 3 classes"
    assert lines["storage"] == "1.5 KiB, 6 KiB decoded"
    metadata = json.loads(condenset("show", "b", "--json").out)
    names = ("images", "stored_images", "partition", "storage_bytes", "decoded_bytes", "shape")
    assert [metadata[name] for name in names] == [24, 6, 2, 6 * 8 * 8 * 4, 24 * 8 * 8 * 4, [1, 8, 8]]
    (record,) = read_records(Path("b"))
    assert (record["ipc"], record["images"], record["storage_bytes"]) == (2, 24, 6 * 8 * 8 * 4)
    assert evaluate(condenset, "b", *QUICK, "--out", "c")[0]["images"] == 24
