"""`condenset export` and `condenset import-set`, and commands on finished sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import condenset as cs
from condenset.cli.completion import FORMATS
from condenset.data.formats import table
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner
from helpers.condensed_sets import make_set

SUFFIXES = {name: item.suffix for name, item in table.FORMATS.items()}


@pytest.fixture
def run(condenset: CommandRunner, toy: Path) -> Path:
    """A run with one scored set of three classes."""
    options = ("--method", "random", "--ipc", 2, "--no-whole", *TINY_EVALUATION, *TINY_NETWORK)
    assert condenset("run", toy, *options, "--out", "a").code == 0
    return Path("a")


def test_completion_knows_all_formats() -> None:
    assert tuple(table.FORMATS) == FORMATS


def test_an_exported_set_has_the_same_score(condenset: CommandRunner, run: Path) -> None:
    for name in FORMATS:
        result = condenset("export", run, f"{name}{SUFFIXES[name]}", "--to", name)
        assert result.code == 0 and f"6 images are in {name}" in result.out
        file = f"{name}.safetensors"
        result = condenset("import-set", f"{name}{SUFFIXES[name]}", "--out", file)
        assert result.code == 0 and f"Score it with: condenset evaluate {file}" in result.out
    files = [f"{name}.safetensors" for name in FORMATS]
    result = condenset("evaluate", run, *files, "--json", *TINY_EVALUATION, *TINY_NETWORK)
    accuracies = [record["accuracy_mean"] for record in json.loads(result.out)]
    assert len(accuracies) == 6 and accuracies == pytest.approx([accuracies[0]] * 6)


def test_the_card_has_the_accuracy_of_the_run(condenset: CommandRunner, run: Path) -> None:
    assert condenset("export", run, "out", "--to", "hf").code == 0
    mean = json.loads((run / "results.json").read_text())[0]["accuracy_mean"]
    assert f"| accuracy | {100 * mean:.1f} % (1 × convnet(width=8, depth=1)) |" in Path("out/README.md").read_text()


def test_the_suffix_chooses_the_format(condenset: CommandRunner, tmp_path: Path) -> None:
    make_set().save("set.safetensors")
    assert condenset("export", "set.safetensors", "x.npz").code == 0
    assert condenset("export", "set.safetensors", "x.pt").code == 0
    error = condenset("export", "set.safetensors", "x").error_line
    assert error == "the format is unclear from 'x': give --to folder, npz, hf, webdataset or pt"
    error = condenset("export", "set.safetensors", "x.npz").error_line
    assert error == "x.npz exists already; choose another path or overwrite it with --overwrite"
    assert condenset("export", "set.safetensors", "x.npz", "--overwrite").code == 0
    assert "did you mean 'folder'?" in condenset("export", "set.safetensors", "y", "--to", "folders").error_line
    assert "must end in .npz" in condenset("export", "set.safetensors", "y", "--to", "npz").error_line
    make_set().save("other.safetensors")
    assert f"{tmp_path} has 2 sets: give one" in condenset("export", tmp_path, "y", "--to", "folder").error_line


@pytest.mark.parametrize("command", [("export",), ("show",)])
def test_a_missing_set_file_names_those_that_exist(command: tuple[str, ...], condenset: CommandRunner) -> None:
    out = ("x.npz",) if command == ("export",) else ()
    assert condenset(*command, "sets/dm-5.safetensors", *out).error_line == "no such file: sets/dm-5.safetensors"
    Path("sets").mkdir()
    for num in range(1, 12):
        make_set().save(f"sets/dm-{num:02}.safetensors")
    names = ", ".join(f"'dm-{num:02}.safetensors'" for num in range(1, 11))
    error = condenset(*command, "sets/dm-5.safetensors", *out).error_line
    assert error == f"no such file: sets/dm-5.safetensors; sets has {names}, …"


def test_a_published_set_can_be_scored(condenset: CommandRunner) -> None:
    images, labels = torch.rand(10, 1, 8, 8), torch.arange(10)
    torch.save({"data": [[images / 0.5 - 1, labels]]}, "published.pt")
    error = condenset("import-set", "published.pt", "--out", "set.safetensors").error_line
    assert error.endswith("give --normalization cifar10 or --mean with --std")
    assert not Path("set.safetensors").exists()
    constants = ("--mean", "0.5", "--std", "0.5")
    result = condenset("import-set", "published.pt", "--out", "set.safetensors", "--dataset", "digits", *constants)
    assert result.code == 0, result
    torch.testing.assert_close(cs.CondensedSet.load("set.safetensors").images, images)
    assert condenset("evaluate", "set.safetensors", *TINY_EVALUATION, *TINY_NETWORK).code == 0
    again = ("import-set", "published.pt", "--out", "set.safetensors", *constants)
    assert "set.safetensors exists already" in condenset(*again).error_line
    result = condenset(*again, "--overwrite")
    assert "condenset evaluate set.safetensors --dataset DATASET" in result.out
    assert "--mean must be numbers" in condenset(*again[:-4], "--overwrite", "--mean", "a").error_line


def test_finished_sets_have_names(condenset: CommandRunner, tmp_path: Path) -> None:
    result = condenset("show", "mnist-dm-1")
    assert result.code == 0 and "10 of 1x28x28" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["mnist-dm-1.png"]
    help_text = " ".join(condenset("show", "--help").out.replace("│", " ").split())
    assert "for a finished set, in the working directory" in help_text
    assert condenset("export", "mnist-dm-1", "x.npz").code == 0
    assert "the dataset mnist" in condenset("evaluate", "mnist-dm-1").error_line  # it is not on this machine
    assert "did you mean the finished set" in condenset("show", "mnist-dm-3").error_line
