"""`condenset evaluate`: which images a set is tested on, and whether it was made from them."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

import condenset as cs
from condenset import CondensedSet
from helpers.command_line import (
    TINY_EVALUATION,
    TINY_NETWORK,
    CommandRunner,
    read_records,
    write_npz,
)
from helpers.data_files import make_classes
from helpers.evaluations import NETWORK, QUICK, evaluate, read_table, warning_lines

QUICK_RANDOM = ("--ipc", 1, "--method", "random")
QUICK_RUN = (*QUICK_RANDOM, *TINY_NETWORK, *TINY_EVALUATION, "--no-whole")


def test_a_copied_set_is_tested_on_the_images_of_its_run(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    options = ("--size", 6, "--test-share", 0.3, "--background", "black")
    condenset("run", "pets", *QUICK_RUN, *options, "--out", "a")
    shutil.copy("a/sets/random-1.safetensors", "copy.safetensors")
    origin = {"dataset": str(tmp_path / "pets"), "size": 6, "background": "black", "test_share": 0.3}
    assert CondensedSet.load("copy.safetensors").provenance["origin"] == origin
    Path("elsewhere").mkdir()
    (record,) = evaluate(condenset, "copy.safetensors", "--device", "cpu", "--config", "a/recipe.toml")
    (expected,) = read_records(Path("a"))
    for name in ("dataset", "test_images", "accuracies", "network"):
        assert record[name] == expected[name]
    shutil.move("pets", "elsewhere")
    error_line = condenset("evaluate", "copy.safetensors", *QUICK).error_line
    assert f"names the dataset {tmp_path / 'pets'}: no such folder" in error_line and "give --dataset" in error_line


@pytest.mark.parametrize("copied", [False, True])
def test_test_images_among_the_training_images_are_a_warning(
    condenset: CommandRunner, tmp_path: Path, copied: bool
) -> None:
    make_classes(tmp_path / "pets", count=10)
    make_classes(tmp_path / "zoo", count=4)
    shutil.copytree("pets", "moved/pets")
    condenset("run", "pets", *QUICK_RUN, "--out", "a")
    file = shutil.copy("a/sets/random-1.safetensors", "copy.safetensors") if copied else "a"
    overlapping: list[tuple[object, ...]] = [
        ("--dataset", "pets"),
        ("--dataset", "moved/pets"),
        ("--dataset", "zoo", "--test", "pets"),
        ("--test-share", 0.4),
        ("--dataset", "moved/pets", "--test-share", 0.4),
    ]
    for options in overlapping:
        (line,) = warning_lines(condenset, "evaluate", file, *QUICK, *options)
        assert "the test images contain images that" in line and "its accuracy is too high" in line
    separate: list[tuple[object, ...]] = [
        (),
        ("--test-share", 0.2),
        ("--dataset", "moved/pets", "--test-share", 0.2),
        ("--test", "zoo"),
    ]
    for options in separate:
        assert warning_lines(condenset, "evaluate", file, *QUICK, *options) == []


def test_a_share_of_images_that_were_all_used_is_refused(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=5)
    condenset("condense", "pets", *QUICK_RANDOM, "--out", "a")
    shutil.copy("a/sets/random-1.safetensors", "copy.safetensors")
    cs.condense(cs.load("pets", verbose=False).train, "random", ipc=1, verbose=False).save("python.safetensors")
    for file in ("a", "copy.safetensors", "python.safetensors"):
        for options in ((), ("--dataset", "pets")):
            error_line = condenset("evaluate", file, *QUICK, "--test-share", 0.2, *options).error_line
            assert "was made from all images of" in error_line and "so that none can be held out" in error_line
    error_line = condenset("evaluate", "copy.safetensors", *QUICK, "--test-share", 0.2, "--size", 4).error_line
    assert "image shape of the test set" in error_line


def test_sets_made_in_python_record_their_origin(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    make_classes(tmp_path / "zoo", count=4)
    data = cs.load("pets", size=6, test_share=0.3, verbose=False)
    condensed = cs.condense(data.train, "random", ipc=1, verbose=False)
    condensed.save("python.safetensors")
    origin = {"dataset": str(tmp_path / "pets"), "size": 6, "test_share": 0.3}
    assert condensed.provenance["origin"] == origin
    assert warning_lines(condenset, "evaluate", "python.safetensors", *QUICK) == []
    (line,) = warning_lines(condenset, "evaluate", "python.safetensors", *QUICK, "--dataset", "pets", "--size", 6)
    assert "the test images contain images that python.safetensors was made from" in line


def test_a_set_of_images_in_memory_needs_test_images_only(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=4)
    make_classes(tmp_path / "zoo", count=3)
    data = cs.load("pets", verbose=False).train
    arrays = cs.from_arrays(data.images, data.labels, class_names=data.class_names, name="pets")
    cs.condense(arrays, "random", ipc=1, verbose=False).save("a.safetensors")
    error_line = condenset("evaluate", "a.safetensors", *QUICK).error_line  # not the folder of the same name
    assert "names the dataset 'pets', which is not known here: give --dataset or --test" in error_line
    (record,) = evaluate(condenset, "a.safetensors", *QUICK, "--test", "zoo")
    assert (record["dataset"], record["test_images"]) == (str(tmp_path / "zoo"), [3, 3])
    assert "no such folder or file: " in condenset("evaluate", "a.safetensors", *QUICK, "--test", "none").error_line


def test_test_images_replace_a_dataset_that_is_gone(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    make_classes(tmp_path / "zoo", count=3)
    condenset("run", "pets", "--size", 6, *QUICK_RUN, "--out", "a")
    shutil.rmtree("pets")
    (record,) = evaluate(condenset, "a", *QUICK, "--test", "zoo")
    assert record["test_images"] == [3, 3]
    Path("pets").mkdir()  # a folder that is no dataset
    assert "names the dataset" in condenset("evaluate", "a", *QUICK).error_line


def test_a_resumed_evaluation_names_the_option_of_moved_test_images(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "pets", count=10)
    make_classes(tmp_path / "zoo", count=3)
    condenset("condense", "pets", *QUICK_RANDOM, "--out", "a")
    condenset("evaluate", "a", *QUICK, "--dataset", "pets", "--test", "zoo", "--out", "e")
    Path("e/results.json").unlink()
    shutil.move("zoo", "moved")
    error_line = condenset("resume", "e").error_line
    assert error_line.endswith("if the dataset has moved, give its path with --dataset, --test or --data-dir")
    assert condenset("resume", "e", "--test", "moved").code == 0


def test_own_network_of_a_set_without_one_is_that_of_its_run(condenset: CommandRunner, toy: Path) -> None:
    condenset("run", toy, *QUICK_RUN, "--out", "a")
    shutil.copy("a/sets/random-1.safetensors", "copy.safetensors")
    records = evaluate(condenset, "a", "copy.safetensors", *QUICK, "--network", "own")
    assert [record["network"] for record in records] == [NETWORK, "convnet"]


def test_a_set_of_the_users_own_network_needs_a_network(condenset: CommandRunner, toy: Path) -> None:
    condensed = cs.condense(cs.load(toy, verbose=False).train, "random", ipc=1, verbose=False)
    recipe = {**condensed.provenance["recipe"], "network": "mymlp"}
    dataclasses.replace(condensed, provenance={**condensed.provenance, "recipe": recipe}).save("a.safetensors")
    for options in ((), ("--network", "own")):
        error_line = condenset("evaluate", "a.safetensors", *QUICK, "--dataset", toy, *options).error_line
        assert "the set was learned with your own network 'mymlp': give --network" in error_line
    assert condenset("evaluate", "a.safetensors", *QUICK, "--dataset", toy, *TINY_NETWORK[:2]).code == 0


def test_the_table_names_both_datasets_if_they_differ(condenset: CommandRunner, toy: Path, tmp_path: Path) -> None:
    other = write_npz(tmp_path / "other.npz", seed=1)
    condenset("condense", toy, *QUICK_RANDOM, "--out", "a")
    table = read_table(condenset("evaluate", "a", *QUICK, "--dataset", other).out)
    assert (table[0][1:3], table[1][1:3]) == (["made from", "tested on"], ["toy.npz", "other.npz"])
    Path("x").mkdir()
    shutil.copy(other, "x/toy.npz")
    table = read_table(condenset("evaluate", "a", *QUICK, "--dataset", "x/toy.npz").out)
    assert table[1][1:3] == [str(toy), str(tmp_path / "x/toy.npz")]


@pytest.mark.parametrize("origin", [3, {"dataset": 3}, {"dataset": "a", "size": "b"}, {"dataset": "a", "x": 1}])
def test_a_damaged_origin_is_an_error(condenset: CommandRunner, toy: Path, origin: object) -> None:
    condensed = cs.condense(cs.load(toy, verbose=False).train, "random", ipc=1, verbose=False)
    dataclasses.replace(condensed, provenance={"origin": origin}).save("a.safetensors")
    assert "the origin in the provenance of a.safetensors" in condenset("evaluate", "a.safetensors", *QUICK).error_line


def test_an_origin_that_cannot_be_a_path_is_no_dataset(condenset: CommandRunner, toy: Path) -> None:
    condensed = cs.condense(cs.load(toy, verbose=False).train, "random", ipc=1, verbose=False)
    provenance = {**condensed.provenance, "origin": {"dataset": "a\0b", "test_share": 0.5}}
    dataclasses.replace(condensed, provenance=provenance).save("a.safetensors")
    assert "names the dataset" in condenset("evaluate", "a.safetensors", *QUICK).error_line
    assert condenset("evaluate", "a.safetensors", *QUICK, "--dataset", toy).code == 0


def test_a_set_of_a_folder_without_test_images_names_the_ways_out(condenset: CommandRunner, tmp_path: Path) -> None:
    make_classes(tmp_path / "own")
    condenset("condense", "own", "--ipc", 1, "--method", "random", "--out", "a")
    error = condenset("evaluate", "a", *QUICK).error_line
    assert error.endswith("with --dataset or --test, or condense again with --test-share 0.2")
