from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from data_files import Refused, make_classes, write_cifar10, write_mnist

from condenset.data import SOURCES, check_files, data_folder, describe, import_data, load
from condenset.data.raw import hold_out


def test_unknown_names_get_the_nearest_one(tmp_path: Path, refused: Refused) -> None:
    with refused("did you mean 'cifar10'?"):
        load("cifar11")
    with refused("or a path that exists, but got 'xyzzy'"):
        load("xyzzy")
    make_classes(tmp_path / "pictures")
    import_data(tmp_path / "pictures", "flowers")
    with refused("did you mean 'flowers'?"):
        load("flower")
    with refused("must be a name or a path, but got ''"):
        load("")
    with refused("no such folder or file"):
        load(tmp_path / "nowhere")
    (tmp_path / "set.csv").write_text("1,2")
    with refused("must end in .npz"):
        load(tmp_path / "set.csv")
    (tmp_path / "small.safetensors").touch()
    with refused("a set is read by cs.CondensedSet.load"):
        load(tmp_path / "small.safetensors")
    (tmp_path / "run" / "sets").mkdir(parents=True)
    (tmp_path / "run" / "recipe.toml").write_text("# condenset 0.1.0")
    with refused("holds a run, not a dataset; a set in it is read by cs.CondensedSet.load"):
        load(tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "digits"])
def test_missing_files_say_how_to_get_them(tmp_path: Path, refused: Refused, name: str) -> None:
    how = "image-net.org" if name == "imagenet" else f"get it with 'condenset data get {name}'"
    with refused(f"{name} is not in {tmp_path}: ", how, "--data-dir"):
        load(name, data_dir=tmp_path)


def test_names_are_taken_in_any_spelling(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    for name in ("cifar10", "CIFAR-10", "cifar_10"):
        assert load(name, data_dir=tmp_path).train.name == "cifar10"


def test_a_known_name_wins_and_a_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_classes(tmp_path / "digits")
    assert load("digits").train.num_classes == 10
    assert load("./digits").train.num_classes == 2
    assert load(Path("digits")).train.num_classes == 2
    make_classes(tmp_path / "mine.set")
    assert load("mine.set").train.name == "mine.set"


def test_arrays_have_one_size_only(refused: Refused) -> None:
    assert load("digits", size=8).train.size == 8
    with refused("the images of digits are 8x8, and only image files can be fitted to another size, but got size 16"):
        load("digits", size=16)


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder("~/x") == Path.home() / "x"
    assert data_folder() == tmp_path / "data"
    monkeypatch.delenv("CONDENSET_DATA")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "condenset"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_folder() == Path.home() / ".cache" / "condenset"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert data_folder() == Path.home() / "Library" / "Caches" / "condenset"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_folder() == tmp_path / "local" / "condenset"


def test_hold_out_is_a_fifth_of_every_class(refused: Refused) -> None:
    labels = np.array([1, 0, 1, 0, 1, 1, 1, 1, 0])
    train, test = hold_out(labels, ("a", "b"), "x")
    assert test.tolist() == [0, 1, 7] and train.tolist() == [2, 3, 4, 5, 6, 8]
    with refused("class 'b' has one image"):
        hold_out(np.array([0, 0, 1]), ("a", "b"), "x")


def test_check_counts_what_a_known_set_must_have(tmp_path: Path, refused: Refused) -> None:
    report = check_files("digits")
    assert (report.num_train, report.num_test, report.num_classes, report.shape) == (1433, 364, 10, (1, 8, 8))
    assert report.mean == report.measured_mean and "1,433 train and 364 test images of 1x8x8" in str(report)
    write_mnist(tmp_path / "MNIST")
    with refused("mnist must have 60000 train and 10000 test images, but got 40 and 20"):
        check_files("mnist", data_dir=tmp_path)
    make_classes(tmp_path / "own")
    assert check_files(tmp_path / "own").num_train == 8
    (tmp_path / "own" / "a" / "3.png").write_bytes(b"x")
    with refused("3.png is not a readable image"):
        check_files(tmp_path / "own", size=8)


def test_describe_lists_known_and_imported(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST")
    make_classes(tmp_path / "own")
    import_data(tmp_path / "own", "mine", data_dir=tmp_path)
    broken = import_data(tmp_path / "own", "torn", data_dir=tmp_path)
    (broken / "meta.json").write_text("{")
    entries = {entry.name: entry for entry in describe(tmp_path)}
    assert list(entries)[: len(SOURCES)] == list(SOURCES)
    states = {name: entries[name].state for name in ("digits", "mnist", "cifar10", "mine", "torn")}
    assert list(states.values()) == ["bundled", "ready", "missing", "imported", "broken"]
    assert entries["mine"].num_train == 8 and entries["mine"].shape == (3, 8, 8)
    assert entries["cifar10"].download_bytes == 170_498_071 and entries["mnist"].where == tmp_path / "MNIST"


@pytest.mark.parametrize("name", SOURCES)
def test_table_is_consistent(name: str) -> None:
    source = SOURCES[name]
    assert name == name.lower() and name.isalnum()
    if source.mean is not None and source.std is not None:
        assert len(source.mean) == len(source.std) == source.shape[0]
    assert source.bundled or source.homes
    assert source.bundled or bool(source.downloads) != bool(source.by_hand)
    for item in source.downloads:
        assert item.digest.startswith("md5:") and len(item.digest) == 36 and item.size > 0
