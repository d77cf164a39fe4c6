"""What a user can get wrong: one line, exit code 2, and every file as it was."""

from __future__ import annotations

import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shell import TINY, TINY_NETWORK, Condenset, names, tree, write_npz

from condenset import cli, files, runs

FEW = ("--nets", 1, "--epochs", 1)


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("run", "digitz", "--ipc", 1), ["digitz", "did you mean 'digits'"]),
        (("run", "no/such/folder", "--ipc", 1), ["no such folder or file: no/such/folder"]),
        (("run", "missing.npz", "--ipc", 1), ["missing.npz"]),
        (("run", "mnist", "--ipc", 1), ["condenset data get mnist"]),
        (("run", "toy.npz", "--ipc", 1, "--method", "dmm"), ["random, herding", "did you mean 'dm'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnett"), ["did you mean 'convnet'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(wdth=3)"), ["did you mean 'width'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(norm='bn')"), ["none, batch, layer", "'bn'"]),
        (("run", "toy.npz", "--ipc", 1, "--network", "convnet(depth=9)"), ["depth"]),
        (("run", "toy.npz", "--ipc", 1, "--itertions", 3), ["--itertions", "--iterations"]),
        (("rn", "toy.npz"), ["'rn'", "run"]),
        (("run", "toy.npz"), ["--ipc"]),
        (("run",), ["which dataset?"]),
        (("evaluate",), ["Missing argument"]),
        (("run", "toy.npz", "--ipc", 0), ["must be a whole number, 1 or more, but got 0"]),
        (("run", "toy.npz", "--ipc", -3), ["must be a whole number, 1 or more, but got -3"]),
        (("run", "toy.npz", "--ipc", "one"), ["--ipc must be whole numbers such as 1,10,50", "'one'"]),
        (("run", "toy.npz", "--ipc", "1,,2"), ["--ipc must be whole numbers", "''"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "dm.lr=1", "--set", "dm.lr=2"), ["must be given once", "'dm.lr'"]),
        (("run", "toy.npz", "--ipc", 1, "--augment", "none_flip"), ["none or operations, not both", "'none_flip'"]),
        (("run", "toy.npz", "--ipc", 13), ["class 'class 0' has 12", "--set allow_fewer=true"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--iterations", -1),
            ["iterations must be a whole number, 0 or more, but got -1"],
        ),
        (("run", "toy.npz", "--ipc", 1, "--lr", "nan"), ["lr must be a number above 0, but got nan"]),
        (("run", "toy.npz", "--ipc", 1, "--init", "reel"), ["did you mean 'real'"]),
        (("run", "toy.npz", "--ipc", 1, "--nets", 0), ["nets must be a whole number, 1 or more, but got 0"]),
        (("run", "toy.npz", "--ipc", 1, "--epochs", -1), ["epochs must be a whole number, 0 or more, but got -1"]),
        (("run", "toy.npz", "--ipc", 1, "--size", 16), ["8x8", "size 16"]),
        (("run", "toy.npz", "--ipc", 1, "--method", "random", "--lr", 3), ["option of random", "'lr'"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "momentun=0"), ["option of a method", "did you mean 'momentum'"]),
        (("run", "toy.npz", "--ipc", 1, "--set", "kernel=rbf"), ["option of random, dm", "'kernel'"]),
        (("compare", "toy.npz", "--ipc", 1, "--set", "mmd.kernel=rbg"), ["kernel must be", "did you mean 'rbf'"]),
        (("condense", "toy.npz", "--ipc", 1, "--set", "dsa.outer=2"), ["method of a setting", "dm", "'dsa'"]),
        (("run", "toy.npz", "--ipc", 1, "--precision", "float16"), ["float32, bfloat16", "'float16'"]),
        (("run", "toy.npz", "--ipc", 1, "--device", "gpu"), ["cpu, cuda, mps", "'gpu'"]),
        (("run", "toy.npz", "--ipc", 1, "--memory", "lots"), ["such as 4GiB, 4GB, 512M", "'lots'"]),
        (("condense", "toy.npz", "--ipc", 1, "--memory", "0"), ["such as 4GiB", "0"]),
        (("resume", "nowhere", "--memory", "-1G"), ["such as 4GiB", "'-1G'"]),
        (("paper", "sota", "--dataset", "nowhere", "--memory", "lots"), ["such as 4GiB", "'lots'"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--network", "convnet(norm='batch', depth=1)", "--memory", "64K"),
            ["batch norm needs all 3 classes in one pass", "but got memory of 64 KiB"],
        ),
        (("run", "toy.npz", "--ipc", 1, "--overwrite"), ["--overwrite needs --out"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "toy.npz"), ["cannot write to toy.npz"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "toy.npz/run"), ["cannot write to toy.npz/run", "Not a directory"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a", "--data-dir", "b\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "a", "--set", "pool=b\udcff"), ["a path must be text in UTF-8"]),
        (("run", "toy.npz", "--ipc", 1, "--out", "/proc/run"), ["cannot write to /proc/run"]),
        (("run", "--config", "none.toml"), ["cannot read none.toml"]),
        (("run", "--config", "toy.npz"), ["toy.npz is not TOML"]),
        (("resume", "nowhere"), ["nowhere is not a run"]),
        (("resume", "."), ["is not a run"]),
        (("show", "none.safetensors"), ["no such file: none.safetensors"]),
        (("show", "toy.npz"), ["toy.npz is not a readable .safetensors file"]),
        (("evaluate", "none.safetensors"), ["no such file: none.safetensors"]),
        (("evaluate", "."), [". is neither a run nor a folder of set files"]),
        (("show", "."), [". is neither a run nor a folder of set files"]),
        (
            ("run", "toy.npz", "--ipc", 1, "--iterations", 5, "--set", "iterations=7"),
            ["twice", "--iterations"],
        ),
        (("compare", "toy.npz", "--ipc", 1, "--allow-fewer", "--set", "allow_fewer=true"), ["twice", "--allow-fewer"]),
        (("condense", "toy.npz", "--ipc", 1, "--lr", 1, "--set", "lr=2"), ["lr is given twice"]),
        (("run", "toy.npz", "--ipc", 1, "--method", ","), ["--method must name a method", "','"]),
        (("data", "check", "digitz"), ["did you mean 'digits'"]),
        (("data", "get", "minst"), ["did you mean 'mnist'"]),
        (("data", "import", "toy.npz", "a/b"), ["a name must be", "'a/b'"]),
        (("data", "import", "toy.npz", "mnist"), ["known dataset"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_a_mistake_gets_one_line(
    condenset: Condenset, toy: Path, tmp_path: Path, arguments: tuple[object, ...], texts: list[str]
) -> None:
    before = tree(tmp_path)
    result = condenset(*arguments)
    assert [text for text in texts if text not in result.complaint] == [], result.complaint
    assert len(result.err.splitlines()) == 1
    assert tree(tmp_path) == before


def test_the_device_that_is_not_there(condenset: Condenset, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = condenset("run", toy, "--ipc", 1, "--device", "cuda")
    assert "device 'cuda' is not there: this machine has cpu" in result.complaint


def test_what_was_scored_before_a_set_that_cannot_be_is_told(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    result = condenset("evaluate", "a", "broken.safetensors", *FEW)
    assert (result.code, len(result.out.splitlines())) == (2, 2) and "broken.safetensors is not" in result.err
    stopped = condenset("evaluate", "a", "broken.safetensors", *FEW, "--json")
    assert [record["ipc"] for record in json.loads(stopped.out)] == [1]


def test_a_run_without_a_set_yet_says_so(condenset: Condenset, toy: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    Path("a/condensed.safetensors").unlink()
    for command in ("show", "evaluate"):
        complaint = condenset(command, "a").complaint
        assert "a is a run that has no condensed.safetensors yet" in complaint and "condenset resume a" in complaint
    Path("a/recipe.toml").rename("a/experiment.toml")
    assert "a is an experiment: its sets lie in folders of a/parts" in condenset("evaluate", "a").complaint


def test_an_experiment_that_cannot_begin_leaves_no_folder(condenset: Condenset) -> None:
    few = write_npz(Path("few.npz"), counts=(6, 9))
    sizes = ("paper", "sizes", "--scale", "tiny", "--dataset", few, "--out", "a", "--set", "iterations=1", "--nets", 1)
    told = condenset(*sizes).complaint
    assert "got 10 and class" in told and "--set allow_fewer=true" in told
    assert "--allow-fewer" not in told  # which is no option here
    assert not Path("a").exists()
    assert condenset(*sizes, "--set", "allow_fewer=true", "--epochs", 0, "--whole-epochs", 0).code == 0
    assert Path("a/table.md").exists()


def test_a_run_that_cannot_begin_leaves_no_folder(condenset: Condenset, toy: Path) -> None:
    short = (*TINY_NETWORK, "--iterations", 2)
    wrong = condenset("condense", toy, "--ipc", 1, "--set", "pool=nowhere", "--out", "a", *short)
    assert "nowhere is not a pool of networks" in wrong.complaint
    assert not Path("a").exists()
    assert condenset("condense", toy, "--ipc", 1, "--out", "a", *short).code == 0


def test_what_may_not_be_read_is_one_line(condenset: Condenset, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "locked/a")

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert condenset("data", "check", toy).complaint == "no access to locked/a: Permission denied"


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
def test_a_name_too_long_for_the_disk_is_one_line(
    condenset: Condenset, toy: Path, tmp_path: Path, arguments: tuple[object, ...]
) -> None:
    for name in ("x" * 300, "x/" * 3000):
        result = condenset(*arguments, name)
        assert "File name too long" in result.complaint and len(result.err.splitlines()) == 1
    assert names(tmp_path) == ["toy.npz"]


def test_a_small_class_is_named_before_anything_is_written(condenset: Condenset, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "uneven.npz", (9, 2, 9))
    before = tree(tmp_path)
    complaint = condenset("run", path, "--ipc", 3, *TINY, "--out", "a").complaint
    assert "got 3 and class 'class 1' has 2 images" in complaint
    assert tree(tmp_path) == before
    result = condenset("run", path, "--ipc", 3, *TINY, "--out", "a", "--allow-fewer", "--json")
    assert [record["ipc"] for record in json.loads(result.out)] == [3, 3]


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
        (RECIPE.replace("ipc = 1", ""), ["is not a recipe of condenset"]),
        (RECIPE.replace('"dm"', '"md"'), ["method must be one of"]),
        (RECIPE.replace("= 1\n[", "= 1.5\n["), ["seed must be a whole number, but got 1.5"]),
        (RECIPE.replace('"toy.npz"', "7"), ["dataset must be text, but got 7"]),
        ("device = 7\n" + RECIPE, ["device must be text, but got 7"]),
        ('size = "8"\n' + RECIPE, ["size must be a whole number", "'8'"]),
        ('memory = "lots"\n' + RECIPE, ["such as 4GiB", "'lots'"]),
        ("memory = 1.5\n" + RECIPE, ["such as 4GiB", "1.5"]),
        ("data_dir = 7\n" + RECIPE, ["data_dir must be text, but got 7"]),
        (RECIPE + "lr = 0\n", ["lr must be a number above 0, but got 0"]),
        (RECIPE + "network = 3\n", ["network must be text"]),
        (RECIPE + '[[jobs]]\nmethod = "dm"\nipc = 1\nlr = 2\n', ["jobs must differ", "dm-1"]),
        ('jobs = []\ndataset = "toy.npz"', ["at least one job"]),
        (RECIPE + "[protocol]\nnetz = 3\n", ["'netz'", "did you mean 'nets'"]),
        (RECIPE + "[protocol]\nnets = 0\n", ["nets must be a whole number, 1 or more"]),
        ("x = " + "[" * 5000, ["is not TOML"]),
        (RECIPE.replace("seed = 1", "seed = " + "9" * 5000), ["is not TOML: Exceeds the limit"]),
        (RECIPE.replace("seed = 1", "seed = 1" + "0" * 400), ["seed must be a whole number of at most 64 bits"]),
        (RECIPE.replace('"dm"', "0x" + "f" * 5000), ["method must be one of", "a number of thousands of digits"]),
        (RECIPE + "lr = 1" + "0" * 400, ["lr must be a number above 0, but got 1000"]),
    ],
)
def test_a_config_that_is_none(condenset: Condenset, toy: Path, tmp_path: Path, content: str, texts: list[str]) -> None:
    Path("bad.toml").write_text(content)
    before = tree(tmp_path)
    result = condenset("run", "--config", "bad.toml", *TINY)
    assert [text for text in texts if text not in result.complaint] == [], result.complaint
    assert len(result.err.splitlines()) == 1
    assert tree(tmp_path) == before


def edited(blob: bytes, edit: Callable[[dict[str, dict[str, object]]], None]) -> bytes:
    """A .safetensors file with its header changed."""
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + blob[8 + length :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda blob: blob[:-1],
        lambda blob: blob[:100],
        lambda blob: b"",
        lambda blob: struct.pack("<Q", 2**62) + blob[8:],
        lambda blob: edited(blob, lambda header: header["images"].update(shape=[2**40, 1, 8, 8])),
        lambda blob: edited(blob, lambda header: header["images"].update(shape=[3, 1, 4, 4])),
        lambda blob: edited(blob, lambda header: header["labels"].update(dtype="F64")),
        lambda blob: edited(blob, lambda header: header.pop("__metadata__")),
        lambda blob: edited(blob, lambda header: header["__metadata__"].update(condenset="[]")),
        lambda blob: edited(blob, lambda header: header["__metadata__"].update(condenset='{"format": 2}')),
    ],
)
def test_a_set_file_that_lies(condenset: Condenset, toy: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    path = tmp_path / "a" / "condensed.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    before = tree(tmp_path)
    for command in (("show", "a"), ("show", path, "--out", "b.png"), ("evaluate", "a", *FEW), ("resume", "a")):
        assert "condensed.safetensors" in condenset(*command).complaint
    assert tree(tmp_path) == before


def test_a_set_and_a_dataset_that_do_not_match(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    other = write_npz(tmp_path / "other.npz", (4, 4))
    complaint = condenset("evaluate", "a", "--dataset", other, *FEW).complaint
    assert "must have the test data's 2 classes, but got 3" in complaint
    large = write_npz(tmp_path / "large.npz", size=16)
    assert "shape of the test images" in condenset("evaluate", "a", "--dataset", large, *FEW).complaint
    assert "digitz" in condenset("evaluate", "a", "--dataset", "digitz", *FEW).complaint
    for out in ("toy.npz/x.json", "/proc/x.json"):
        assert "cannot write to" in condenset("evaluate", "a", *FEW, "--out", out).complaint
    assert "cannot write to" in condenset("show", "a", "--out", "toy.npz/x.png").complaint


def test_what_belongs_to_another_recipe_is_refused(
    condenset: Condenset, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runs.Run, "drop_checkpoint", lambda self: None)
    condenset("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 2, "--out", "a")
    assert "checkpoint" in names(tmp_path / "a")
    recipe = tmp_path / "a" / "recipe.toml"
    text = recipe.read_text()
    for old, new, differs in (("lr = 1.0", "lr = 2.0", "lr"), ("seed = 0", "seed = 1", "seed")):
        recipe.write_text(text.replace(old, new))
        before = tree(tmp_path)
        assert "condensed.safetensors belongs to another recipe" in condenset("resume", "a").complaint
        assert tree(tmp_path) == before
        kept = (tmp_path / "a" / "condensed.safetensors").read_bytes()
        (tmp_path / "a" / "condensed.safetensors").unlink()
        before = tree(tmp_path)
        complaint = condenset("resume", "a").complaint
        assert f"a/checkpoint belongs to another recipe (it differs in {differs})" in complaint
        assert tree(tmp_path) == before
        (tmp_path / "a" / "condensed.safetensors").write_bytes(kept)


@pytest.mark.parametrize("spoiled", [b"", b"{}", b"not a checkpoint at all"])
def test_a_checkpoint_that_is_none(condenset: Condenset, toy: Path, tmp_path: Path, spoiled: bytes) -> None:
    condenset("condense", toy, "--ipc", 1, *TINY_NETWORK, "--iterations", 2, "--out", "a")
    (tmp_path / "a" / "condensed.safetensors").unlink()
    (tmp_path / "a" / "checkpoint").write_bytes(spoiled)
    before = tree(tmp_path)
    assert "a/checkpoint is not" in condenset("resume", "a").complaint
    assert tree(tmp_path) == before


def test_results_that_are_none(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    condenset("run", toy, "--ipc", 1, *TINY, "--out", "a")
    path = tmp_path / "a" / "results.json"
    records = json.loads(path.read_text())
    changes: list[dict[str, object]] = [
        {"method": ["dm"]},
        {"ipc": {}},
        {"network": 3},
        {"condense_seconds": "1"},
        {"condense_seconds": 10**400},
        {"evaluate_seconds": []},
        {"accuracies": []},
        {"accuracies": [2]},
        {"accuracy_mean": "0.5"},
        {"accuracy_std": None},
        {"together": 3},
    ]
    unscored = {key: value for key, value in records[1].items() if key != "accuracies"}
    spoiled = [list(records[1]), unscored, *(records[1] | change for change in changes)]
    for content in ("", "{}", "[3]", '[{"method": "dm"}]', *(json.dumps([each]) for each in spoiled)):
        path.write_text(content)
        before = tree(tmp_path)
        assert "a/results.json is not a list of results; delete it" in condenset("resume", "a").complaint, content
        assert tree(tmp_path) == before
    path.unlink()
    assert condenset("resume", "a").code == 0
    assert [each["accuracies"] for each in json.loads(path.read_text())] == [each["accuracies"] for each in records]


def test_a_disk_that_fills_up_leaves_only_whole_files_and_can_be_resumed(
    condenset: Condenset, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("run", toy, "--ipc", 1, *TINY)
    written: list[str] = []
    monkeypatch.setattr(files.os, "fsync", lambda handle: written.append("x"))
    condenset(*command, "--out", "whole")
    total = len(written)
    assert total >= 6  # recipe, two sets, results twice, picture
    for number in range(total):
        written.clear()

        def fsync(handle: int, number: int = number) -> None:
            written.append("x")
            if len(written) > number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(files.os, "fsync", fsync)
        folder = tmp_path / f"full-{number}"
        complaint = condenset(*command, "--out", folder).complaint
        assert "cannot write to" in complaint
        assert "No space left on device" in complaint
        assert not [name for name in names(folder) if name.endswith(".tmp")]
        monkeypatch.setattr(files.os, "fsync", lambda handle: None)
        again = ("resume", folder) if number else (*command, "--out", folder)
        assert condenset(*again).code == 0
        assert names(folder) == names(tmp_path / "whole")
        first, second = (json.loads((place / "results.json").read_text()) for place in (tmp_path / "whole", folder))
        assert [record["accuracies"] for record in first] == [record["accuracies"] for record in second]


def test_a_loss_that_is_no_number_stops_the_run(condenset: Condenset, toy: Path, tmp_path: Path) -> None:
    result = condenset("run", toy, "--ipc", 1, *TINY, "--lr", 1e30, "--out", "a")
    assert "at iteration 2: a smaller lr may help; there is no checkpoint yet" in result.complaint
    assert "condensed.safetensors" not in names(tmp_path / "a")


def test_a_bug_gets_a_traceback(condenset: Condenset, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condenset.workflow.execute", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["run", str(toy), "--ipc", "1", *TINY])


def test_the_real_command_keeps_to_one_line(toy: Path) -> None:
    script = [sys.executable, "-c", "from condenset.cli import main; main()"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*script, "run", "toy.npz", "--ipc", "99"], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("condenset: ipc must be at most")
    assert len(done.stderr.splitlines()) == 1


def test_what_can_be_refused_is_refused_before_the_data_are_read(
    condenset: Condenset, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    condenset("condense", toy, "--ipc", 1, "--method", "random", "--out", "a")
    monkeypatch.setattr("condenset.data.load", lambda *arguments, **options: 1 / 0)
    assert "did you mean 'dm'" in condenset("run", toy, "--ipc", 1, "--method", "dmm").complaint
    assert "but got 0" in condenset("run", toy, "--ipc", 0).complaint
    assert "did you mean 'convnet'" in condenset("run", toy, "--ipc", 1, "--network", "convnett").complaint
    assert "holds a run already" in condenset("run", toy, "--ipc", 1, "--out", "a").complaint
    assert "cannot write to" in condenset("evaluate", "a", *FEW, "--out", toy / "scores.json").complaint
