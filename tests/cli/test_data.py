"""The command `condenset data`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from condenset import data
from helpers.command_line import CommandRunner
from helpers.data_files import make_classes


def test_data_import_makes_a_named_dataset(condenset: CommandRunner, toy: Path) -> None:
    result = condenset("data", "import", toy, "animals")
    assert result.code == 0
    assert "animals is in" in result.out
    error_line = condenset("data", "import", toy, "animals").error_line
    assert "exists already" in error_line and "--overwrite" in error_line
    assert condenset("data", "import", toy, "animals", "--overwrite").code == 0
    assert "imported" in condenset("data", "list").out
    assert data.load("animals").train.allow_hflip
    assert condenset("data", "import", toy, "letters", "--no-flip").code == 0
    assert not data.load("letters").train.allow_hflip
    assert condenset("data", "import", "digits", "plain").code == 0
    assert not data.load("plain").train.allow_hflip  # as in the source
    assert condenset("data", "import", "digits", "turned", "--flip").code == 0
    assert data.load("turned").train.allow_hflip
    assert condenset("data", "check", "animals").out.startswith("animals: 36 train and 36 test images of 1x8x8")


def test_data_commands_print_json(condenset: CommandRunner, toy: Path) -> None:
    assert json.loads(condenset("data", "check", toy, "--json").out)["num_train"] == 36
    entries = json.loads(condenset("data", "list", "--json").out)
    assert {"name", "state", "num_train"} <= set(entries[0])


def test_data_get_of_a_bundled_dataset_downloads_nothing(condenset: CommandRunner, tmp_path: Path) -> None:
    assert "no download is needed" in condenset("data", "get", "digits").out
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_data_check_reports_unreadable_files(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own")
    for name in ("a", "b"):
        (tmp_path / "own" / name / "0.png").write_bytes(b"x")
    result = condenset("data", "check", "own")
    assert result.code == 2 and "unreadable files: 2\n" in result.out and "classes: a 4, b 4\n" in result.out
    rule = "2 image files are not readable: repair them, or leave them out with --skip-bad"
    assert result.err.splitlines()[-1] == f"condenset: {rule}"
    make_classes(tmp_path / "one")
    (tmp_path / "one" / "a" / "0.png").write_bytes(b"x")
    rule = "1 image file is not readable: repair it, or leave it out with --skip-bad"
    assert condenset("data", "check", "one").err.splitlines()[-1] == f"condenset: {rule}"
    result = condenset("data", "check", "own", "--skip-bad", "--json")
    assert result.code == 0 and len(json.loads(result.out)["unreadable"]) == 2


def write_arrays(path: Path, shape: tuple[int, ...], labels: list[int], dtype: str = "uint8") -> None:
    np.savez(path, x=np.random.default_rng(0).integers(0, 256, (len(labels), *shape)).astype(dtype), y=labels)


def make_dataset(kind: str) -> None:
    """Write a dataset to data.npz or to the folder photos."""
    path = Path("data.npz")
    if kind == "numbers with gaps":
        write_arrays(path, (4, 4), [7, 2, 7, 2])
    elif kind == "other integers":
        write_arrays(path, (4, 4), [0, 1, 0, 1], "int64")
    elif kind == "one class":
        write_arrays(path, (4, 4), [0, 0])
    elif kind.startswith("wide arrays"):
        write_arrays(path, (4, 6), [0, 1, 0, 1])
    elif kind.startswith("wide files"):
        make_classes(Path("photos"), count=3, size=(8, 6))
    else:
        make_classes(Path("photos"), count=3)
        Path("photos/a/0.png").write_bytes(b"x")


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        ("numbers with gaps", (), None),
        ("other integers", (), None),
        ("one class", (), "nothing to classify"),
        ("wide arrays", (), "not square: give --size, --fit crop or --fit pad"),
        ("wide arrays with a size", ("--size", 4), None),
        ("wide files", (), "not square: give --size, --fit crop or --fit pad"),
        ("wide files with a fit", ("--fit", "pad"), None),
        ("unreadable file", (), "readable"),
        ("unreadable file left out", ("--skip-bad",), None),
    ],
)
@pytest.mark.filterwarnings("ignore:1 unreadable image file is left out")
def test_commands_accept_the_same_datasets(
    condenset: CommandRunner, kind: str, options: tuple[object, ...], error: str | None
) -> None:
    make_dataset(kind)
    source = "data.npz" if Path("data.npz").exists() else "photos"
    method = ("--method", "random", "--ipc", 1, "--device", "cpu", "--out", "out")
    commands = (("data", "check", source), ("data", "import", source, "mine"), ("condense", source, *method))
    for command in commands:
        result = condenset(*command, *options)
        assert result.code == (2 if error else 0), result
        assert error is None or error in result.err, result
        assert ".tmp" not in result.err and "/tmp/condenset" not in result.err


@pytest.mark.filterwarnings("ignore:3 unreadable image files are left out")
def test_data_import_names_unreadable_files(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own" / "train", count=5)
    make_classes(tmp_path / "own" / "test", count=3)
    whole = (tmp_path / "own" / "train" / "a" / "1.png").read_bytes()
    for name, content in (("train/a/0.png", b"x"), ("train/a/1.png", whole[:150]), ("test/b/2.png", b"")):
        (tmp_path / "own" / name).write_bytes(content)  # one has a complete header
    result = condenset("data", "import", "own", "mine")
    assert result.code == 2 and "train/a/0.png is not a readable image" in result.error_line
    assert "(and 1 more: " in result.error_line and "--skip-bad" in result.error_line
    assert condenset("data", "import", "own", "mine", "--skip-bad").code == 0


def test_data_import_reports_missing_test_images(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own", count=3)
    lines = condenset("data", "import", "own", "mine").out.splitlines()
    assert "mine has no test images" in lines[-1] and "--test PATH or --test-share 0.2" in lines[-1]
    result = condenset("data", "import", "own", "mine", "--overwrite", "--test-share", 0.4)
    assert "no test images" not in result.out


def test_data_import_prints_counts_and_splits(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own" / "Training", count=3)
    make_classes(tmp_path / "own" / "valid", count=2)
    lines = condenset("data", "import", "own", "mine").out.splitlines()
    source = f"{tmp_path / 'own'} (train: Training, test: valid)"
    assert lines[1] == f"6 training and 4 test images of 3x8x8, 2 classes, from {source}"


def test_data_list_shows_absolute_sources(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own", count=3)
    make_classes(tmp_path / "other", count=2)
    assert condenset("data", "import", "own", "mine", "--test", "other").code == 0
    entry = next(e for e in json.loads(condenset("data", "list", "--json").out) if e["name"] == "mine")
    assert entry["title"] == f"{tmp_path / 'own'}; test images from {tmp_path / 'other'}"
