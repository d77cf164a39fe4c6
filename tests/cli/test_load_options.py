"""Options that choose the training and the test images."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from condenset import load
from helpers.command_line import TINY_EVALUATION, TINY_NETWORK, CommandRunner
from helpers.data_files import make_classes

RANDOM = ("--method", "random", "--ipc", 1, "--out", "a")
TINY = (*TINY_NETWORK, *TINY_EVALUATION, "--no-whole")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of two classes with ten images each, without splits."""
    make_classes(tmp_path / "photos", "ab", count=10)
    return tmp_path / "photos"


@pytest.mark.parametrize(("share", "text"), [((), "20%"), (("--test-share", 0.5), "50%")])
def test_a_line_names_the_hold_out(
    photos: Path, condenset: CommandRunner, share: tuple[object, ...], text: str
) -> None:
    result = condenset("run", photos, *RANDOM, *TINY, *share)
    assert f"{text} of the images are held out for the test." in result.err.splitlines()
    assert f"{tomllib.loads(Path('a/recipe.toml').read_text())['test_share']:.0%}" == text


def test_condense_holds_nothing_out(photos: Path, condenset: CommandRunner) -> None:
    result = condenset("condense", photos, *RANDOM, "--device", "cpu")
    recipe = tomllib.loads(Path("a/recipe.toml").read_text())
    assert "held out" not in result.err and "test_share" not in recipe
    assert recipe["fingerprint"] == load(photos).train.fingerprint


def test_train_and_test_are_paths(photos: Path, tmp_path: Path, condenset: CommandRunner) -> None:
    make_classes(tmp_path / "more", "ab", count=2, seed=1)
    assert condenset("run", "--train", "photos", "--test", "more", *RANDOM, *TINY).code == 0
    recipe = tomllib.loads(Path("a/recipe.toml").read_text())
    assert (recipe["dataset"], recipe["test"]) == (str(photos), str(tmp_path / "more"))
    assert "exclude each other" in condenset("run", "photos", "--train", "photos").error_line
    assert "--test-share exclude" in condenset("run", photos, "--test", "more", "--test-share", 0.2).error_line


def test_tables_name_validation_images(condenset: CommandRunner) -> None:
    result = condenset("run", "digits", *RANDOM, *TINY, "--val-share", 0.1, "--per-class")
    assert "1,292 training and 141 validation images" in result.err
    assert "10% of the training images are held out for validation." in result.err.splitlines()
    assert "validation %" in result.out and "accuracy %" not in result.out
    assert "validation images" in result.out and "test images" not in result.out
    result = condenset("evaluate", "a", *TINY_EVALUATION, "--dataset", "digits")
    assert "digits (validation)" not in result.out
    assert "digits (validation)" in condenset("evaluate", "a", *TINY_EVALUATION).out
    assert condenset("condense", "digits", "--config", "a/recipe.toml", "--out", "b").code == 0
    assert tomllib.loads(Path("b/recipe.toml").read_text())["val_share"] == 0.1
    assert "1,292 images" in condenset("plan", "digits", *RANDOM[:4], "--val-share", 0.1, "--no-evaluate").out


def test_one_class_is_refused(tmp_path: Path, condenset: CommandRunner) -> None:
    make_classes(tmp_path / "photos", "a", count=2)
    for command in (("run",), ("condense",), ("data", "check"), ("networks", "train-pool", "--out", "p", "--num", 1)):
        assert "nothing to classify" in condenset(*command, "photos").error_line
    assert "nothing to classify" in condenset("data", "import", "photos", "mine").error_line


def test_an_imported_dataset_needs_test_images_to_be_scored(photos: Path, condenset: CommandRunner) -> None:
    assert condenset("data", "import", photos, "mine").code == 0
    assert "import it again with" in condenset("run", "mine", *RANDOM, *TINY).error_line
    assert condenset("data", "import", photos, "mine", "--test-share", 0.2, "--overwrite").code == 0
    assert condenset("run", "mine", *RANDOM, *TINY).code == 0
