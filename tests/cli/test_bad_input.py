"""Mistakes of the user: one line, exit code 2, and no file changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from helpers.command_line import (
    TINY,
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    list_files,
    read_files,
    write_npz,
)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("run", "digitz", "--ipc", 1), ["digitz", "did you mean 'digits'"]),
        (("run", "no/such/folder", "--ipc", 1), ["no such folder or file: no/such/folder"]),
        (("run", "missing.npz", "--ipc", 1), ["missing.npz"]),
        (("run", "~no-such-user/x.npz", "--ipc", 1), ["~no-such-user/x.npz"]),
        (("run", "mnist", "--ipc", 1, "--data-dir", "~no-such-user/x"), ["'~no-such-user/x'"]),
        (("run", "mnist", "--ipc", 1), ["condenset data get mnist"]),
        (("run", "toy.npz", "--ipc", 1, "--method", "dmm"), ["method cannot be 'dmm'; did you mean 'dm'?"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnett"), ["did you mean 'convnet'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(wdth=3)"), ["did you mean 'width'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(norm='bn')"), ["none, batch, layer", "'bn'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(depth=9)"), ["depth"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(width=8, depth=2),mlp"), ["one network", "evaluate RUN"]),
        (("condense", "toy.npz", "--ipc", 1, "--network", "convnet,mlp"), ["one network", "evaluate RUN"]),
        (("run", "toy.npz", "--ipc", 1, "--itertions", 3), ["--itertions", "--iterations"]),
        (("run", "toy.npz", "--seed", 0, "--seed=1"), ["--seed takes one value, but was given 2 times"]),
        (("networks", "train-pool", "toy.npz", "--num", 1, "--num", 2), ["--num takes one value"]),
        (("rn", "toy.npz"), ["'rn'", "run"]),
        (("run",), ["no dataset: give a name"]),
        (("evaluate",), ["Missing argument"]),
        (("run", "toy.npz", "--ipc", 0), ["must be a whole number, 1 or more, but got 0"]),
        (("run", "toy.npz", "--ipc", -3), ["must be a whole number, 1 or more, but got -3"]),
        (("run", "toy.npz", "--ipc", "one"), ["--ipc must be whole numbers such as 1,10,50", "'one'"]),
        (("run", "toy.npz", "--ipc", "1,,2"), ["--ipc must be whole numbers", "''"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "dm.lr=1", "--set", "dm.lr=2"), ["must be given once", "'dm.lr'"]),
        (("run", "toy.npz", "--ipc", 1, "--augment", "none_flip"), ["either none or operations", "'none_flip'"]),
        (
            ("run", "toy.npz", "--ipc", 13),
            ["3 classes have fewer training images, 'class 0' (12)", "--allow-fewer", "--ipc-share"],
        ),
        (
            ("run", "toy.npz", "--ipc", 1, "--iterations", -1),
            ["iterations must be a whole number, 0 or more, but got -1"],
        ),
        (("run", "toy.npz", "--ipc", 1, "--lr", "nan"), ["lr must be a number above 0, but got nan"]),
        (("run", "toy.npz", "--ipc", 1, "--init", "reel"), ["did you mean 'real'"]),
        (("run", "toy.npz", "--ipc", 1, "--nets", 0), ["--nets must be a whole number, 1 or more, but got 0"]),
        (("run", "toy.npz", "--ipc", 1, "--epochs", -1), ["epochs must be a whole number, 0 or more, but got -1"]),
        (("run", "toy.npz", "--ipc", 1, "--method", "random", "--lr", 3), ["option of random", "'lr'"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "momentun=0"), ["option of a method", "did you mean 'momentum'"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "kernel=features"), ["option of random, dm", "'kernel'"]),
        (("compare", "toy.npz", "--ipc", 1, "--set", "kip.kernel=ntt"), ["kernel cannot be", "did you mean 'ntk'"]),
        (("condense", "toy.npz", "--ipc", 1, "--set", "dsa.outer_steps=2"), ["method of a setting", "dm", "'dsa'"]),
        (("run", "toy.npz", "--ipc", 1, "--precision", "int8"), ["float32, bfloat16", "'int8'"]),
        (("run", "toy.npz", "--ipc", 1, "--device", "gpu"), ["device cannot be 'gpu'; did you mean 'cuda'?"]),
        (("run", "toy.npz", "--ipc", 1, "--memory", "lots"), ["such as 4GiB, 4GB, 512M", "'lots'"]),
        (("condense", "toy.npz", "--ipc", 1, "--memory", "0"), ["such as 4GiB", "0"]),
        (("resume", "nowhere", "--memory", "-1G"), ["such as 4GiB", "'-1G'"]),
        (("paper", "sota", "--dataset", "nowhere", "--memory", "lots"), ["such as 4GiB", "'lots'"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--network", "convnet(norm='batch', depth=1)", "--memory", "64K"),
            ["batch norm needs all 3 classes in one pass", "the memory limit is 64 KiB"],
        ),
        (("run", "toy.npz", "--ipc", 1, "--overwrite"), ["--overwrite needs --out"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "toy.npz"), ["toy.npz must be a directory", "choose another --out"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--out", "toy.npz/run"),
            ["toy.npz/run must be a directory, but toy.npz is not"],
        ),
        (("run", "toy.npz", "--ipc", 1, "--out", "toy.npz/run", "--dry-run"), ["toy.npz/run must be a directory"]),
        (("condense", "toy.npz", "--ipc", 1, "--out", "~no-such-user/x"), ["'~no-such-user/x': give the full path"]),
        (("show", "~no-such-user/x"), ["'~no-such-user/x'"]),
        (("evaluate", "a.safetensors", "~no-such-user/x"), ["'~no-such-user/x'"]),
        (("paper", "sota", "--scale", "tiny", "--dataset", ""), ["a dataset must be a name or a path, but got ''"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a", "--data-dir", "b\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a", "--set", "pool=b\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "/proc/run"), ["cannot write to /proc/run"]),
        (("run", "--config", "none.toml"), ["no such file: none.toml"]),
        (("run", "--config", "toy.npz"), ["toy.npz is not TOML"]),
        (("resume", "nowhere"), ["no such directory: nowhere"]),
        (("resume", "."), ["is not a run"]),
        (("show", "none.safetensors"), ["no such file: none.safetensors"]),
        (("show", "toy.npz"), ["toy.npz is not a readable .safetensors file"]),
        (("evaluate", "none.safetensors"), ["no such file: none.safetensors"]),
        (("evaluate", "."), [". is neither a run nor a directory of set files"]),
        (("show", "."), [". is neither a run nor a directory of set files"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--iterations", 5, "--set", "iterations=7"),
            ["twice", "--iterations"],
        ),
        (("compare", "toy.npz", "--ipc", 1, "--allow-fewer", "--set", "allow_fewer=true"), ["twice", "--allow-fewer"]),
        (("condense", "toy.npz", "--ipc", 1, "--lr", 1, "--set", "lr=2"), ["lr is given twice"]),
        (("run", "toy.npz", "--ipc", 1, "--method", ","), ["--method must name a method", "','"]),
        (("data", "check", "digitz"), ["did you mean 'digits'"]),
        (("data", "get", "minst"), ["did you mean 'mnist'"]),
        (("data", "import", "toy.npz", "a/b"), ["a name must consist of", "'a/b'"]),
        (("data", "import", "toy.npz", "mnist"), ["registered dataset"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_mistake_prints_one_line(
    condenset: CommandRunner, toy: Path, tmp_path: Path, arguments: tuple[object, ...], texts: list[str]
) -> None:
    before = read_files(tmp_path)
    result = condenset(*arguments)
    assert [text for text in texts if text not in result.error_line] == [], result.error_line
    assert len(result.err.splitlines()) == 1
    assert read_files(tmp_path) == before


def test_a_missing_device_is_an_error(condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = condenset("run", toy, "--ipc", 1, "--device", "cuda")
    assert "Device 'cuda' is not available: this machine has cpu." in result.error_line


def test_an_unfinished_run_has_no_set(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    Path("a/sets/random-1.safetensors").unlink()
    for command in ("show", "evaluate"):
        error_line = condenset(command, "a").error_line
        assert "a is an unfinished run without a set" in error_line and "condenset resume a" in error_line
    Path("a/recipe.toml").rename("a/experiment.toml")
    assert "a is an experiment: its sets are in the directories of a/parts" in condenset("evaluate", "a").error_line


def test_an_experiment_that_cannot_start_leaves_no_directory(condenset: CommandRunner) -> None:
    few = write_npz(Path("few.npz"), counts=(6, 9))
    sizes = ("paper", "sizes", "--scale", "tiny", "--dataset", few, "--out", "a", "--set", "iterations=1", "--nets", 1)
    error_line = condenset(*sizes).error_line
    assert "got 10 and 2 classes have fewer" in error_line and "--ipc-share" not in error_line
    assert "--set allow_fewer=true" in error_line
    assert "--allow-fewer" not in error_line  # `paper` has no such option
    assert not Path("a").exists()
    assert condenset(*sizes, "--set", "allow_fewer=true", "--epochs", 0, "--whole-epochs", 0).code == 0
    assert Path("a/table.md").exists()


def test_a_run_that_cannot_start_leaves_no_directory(condenset: CommandRunner, toy: Path) -> None:
    short = (*TINY_NETWORK, "--iterations", 2)
    result = condenset("condense", toy, "--ipc", 1, "--set", "pool=nowhere", "--out", "a", *short)
    assert "nowhere is not a pool" in result.error_line
    assert not Path("a").exists()
    assert condenset("condense", toy, "--ipc", 1, "--out", "a", *short).code == 0


def test_a_permission_error_is_one_line(condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_permission_error(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "locked/a")

    monkeypatch.setattr(Path, "is_dir", raise_permission_error)
    assert condenset("data", "check", toy).error_line == "no access to locked/a: Permission denied"


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("evaluate",),
        ("evaluate", "none.safetensors", "--out"),
        ("resume",),
        ("run", "--ipc", 1),
        ("run", "toy.npz", "--ipc", 1, "--out"),
        ("data", "check"),
        ("data", "list", "--data-dir"),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_a_path_that_is_too_long_is_one_line(
    condenset: CommandRunner, toy: Path, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    for name in ("x" * 300, "x/" * 3000):
        result = condenset(*arguments, name)
        assert "File name too long" in result.error_line and len(result.err.splitlines()) == 1
    assert list_files(tmp_path) == ["toy.npz"]


def test_a_link_to_itself_is_one_line(condenset: CommandRunner, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    Path("loop").symlink_to("loop")
    for words in (("evaluate", "a", *TINY_EVALUATION), ("run", toy), ("paper", "sota", "--scale", "tiny")):
        assert "loop must be a directory" in condenset(*words, "--out", "loop").error_line


def test_a_deleted_working_directory_is_one_line(
    condenset: CommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert condenset("evaluate", "a.safetensors").error_line.startswith("the working directory does not exist")


def test_classes_with_too_few_images_are_named_before_the_run(condenset: CommandRunner, tmp_path: Path) -> None:
    """The smallest class is named first, so that one correction of `--ipc` is enough."""
    path = write_npz(tmp_path / "uneven.npz", (4, 2, 9))
    before = read_files(tmp_path)
    error_line = condenset("run", path, "--ipc", 5, *TINY, "--out", "a").error_line
    assert "got 5 and 2 classes have fewer training images, 'class 1' (2), 'class 0' (4)" in error_line
    assert read_files(tmp_path) == before
    result = condenset("run", path, "--ipc", 3, *TINY, "--out", "a", "--allow-fewer", "--json")
    assert [record["ipc"] for record in json.loads(result.out)] == [[3, 2, 3]] * 2
    assert (tmp_path / "a" / "sets" / "dm-2to3.safetensors").exists()
    assert "to 2–3 images per class" in result.err


RECIPE = """dataset = "toy.npz"
seed = 1
[[jobs]]
method = "dm"
ipc = 1
"""


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("this is no TOML", ["is not TOML"]),
        ("", ["is not a recipe of condenset"]),
        ("jobs = 3", ["is not a recipe of condenset"]),
        (RECIPE.replace("seed", "sede"), ["a key of the recipe", "did you mean 'seed'"]),
        (RECIPE.replace("ipc", "icp"), ["'icp'", "did you mean 'ipc'"]),
        (RECIPE + "size = 8\n", ["an option of dm", "'size'"]),
        (RECIPE.replace('"dm"', '"md"'), ["method cannot be 'md'; did you mean 'mmd'?"]),
        (RECIPE.replace("= 1\n[", "= 1.5\n["), ["seed must be a whole number, but got 1.5"]),
        (RECIPE.replace('"toy.npz"', "7"), ["dataset must be text, but got 7"]),
        ("device = 7\n" + RECIPE, ["device must be text, but got 7"]),
        ('size = "8"\n' + RECIPE, ["size must be a whole number", "'8'"]),
        ('memory_limit = "lots"\n' + RECIPE, ["such as 4GiB", "'lots'"]),
        ("memory_limit = 1.5\n" + RECIPE, ["such as 4GiB", "1.5"]),
        ("data_dir = 7\n" + RECIPE, ["data_dir must be text, but got 7"]),
        (RECIPE + "lr = 0\n", ["lr must be a number above 0, but got 0"]),
        (RECIPE + "network = 3\n", ["network must be text"]),
        (RECIPE + '[[jobs]]\nmethod = "dm"\nipc = 1\nlr = 2\n', ["jobs must have different names", "dm-1"]),
        ('jobs = []\ndataset = "toy.npz"', ["at least one job"]),
        (RECIPE + "[protocol]\nepoch = 3\n", ["'epoch'", "did you mean 'epochs'"]),
        (RECIPE + "[protocol]\nnum_networks = 0\n", ["num_networks must be a whole number, 1 or more"]),
        ("x = " + "[" * 5000, ["is not TOML"]),
        (RECIPE.replace("seed = 1", "seed = " + "9" * 5000), ["is not TOML: Exceeds the limit"]),
        (RECIPE.replace("seed = 1", "seed = 1" + "0" * 400), ["seed must be a whole number of at most 64 bits"]),
        (RECIPE.replace('"dm"', "0x" + "f" * 5000), ["method must be one of", "a number of thousands of digits"]),
        (RECIPE + "lr = 1" + "0" * 400, ["lr must be a number above 0, but got 1000"]),
    ],
)
def test_an_invalid_config_is_one_line(
    condenset: CommandRunner, toy: Path, tmp_path: Path, content: str, texts: list[str]
) -> None:
    Path("bad.toml").write_text(content)
    before = read_files(tmp_path)
    result = condenset("run", "--config", "bad.toml", *TINY)
    assert [text for text in texts if text not in result.error_line] == [], result.error_line
    assert len(result.err.splitlines()) == 1
    assert read_files(tmp_path) == before


def test_a_diverging_run_stops(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    options = ("--method", "mmd", "--set", "lr=1e9", "--set", "iterations=8")
    result = condenset("condense", toy, "--ipc", 1, *options, "--device", "cpu", "--out", "a")
    assert "Try a smaller lr. There is no checkpoint yet" in result.error_line
    assert "sets/mmd-1.safetensors" not in list_files(tmp_path / "a")


def test_options_are_checked_before_the_data_are_loaded(
    condenset: CommandRunner, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    for function in ("condenset.data.load", "condenset.pipeline.run.load_splits"):
        monkeypatch.setattr(function, lambda *arguments, **options: 1 / 0)
    assert "did you mean 'dm'" in condenset("run", toy, "--ipc", 1, "--method", "dmm").error_line
    assert "but got 0" in condenset("run", toy, "--ipc", 0).error_line
    assert "crop, pad" in condenset("run", toy, "--fit", "stretch").error_line
    assert "did you mean 'convnet'" in condenset("run", toy, "--ipc", 1, "--network", "convnett").error_line
    assert "already contains a run" in condenset("run", toy, "--ipc", 1, "--out", "a").error_line
    result = condenset("evaluate", "a", *TINY_EVALUATION, "--out", toy / "scores")
    assert "must be a directory" in result.error_line
