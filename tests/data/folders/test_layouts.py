from __future__ import annotations

from pathlib import Path

import pytest

from condenset.data import from_folder, load
from condenset.errors import UserError
from helpers.command_line import CommandRunner
from helpers.data_files import ExpectUserError, make_classes, save_image


def test_training_split_with_other_folders_needs_a_test_split(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["cat", "dog"], count=2)
    make_classes(tmp_path / "extra", ["cat", "dog"], count=1)
    for read in (load, from_folder):
        with pytest.raises(UserError, match="a training split, train, and other folders, but no test split") as caught:
            read(tmp_path)
        tree = ["  extra/  2 images", "    cat/  1 image", "    dog/  1 image", "  train/  4 images"]
        assert caught.value.details.splitlines()[:5] == [f"{tmp_path.name}/", *tree]
    make_classes(tmp_path / "test", ["cat", "dog"], count=1)
    assert load(tmp_path).train.class_counts == (2, 2)  # with both splits, other folders are ignored


@pytest.mark.parametrize("names", [("train", "Training"), ("train", "test", "Test")])
def test_two_folders_for_one_split_are_rejected(
    tmp_path: Path, names: tuple[str, ...], user_error: ExpectUserError
) -> None:
    for name in names:
        make_classes(tmp_path / name, "ab", count=1)
    if len(list(tmp_path.iterdir())) < len(names):
        pytest.skip("this file system ignores case")
    with user_error("has several", "rename or remove one"):
        load(tmp_path)


def test_class_with_several_folders_is_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "animals", ["cats", "dogs"], count=2)
    make_classes(tmp_path, ["cars"], count=2)
    with user_error("several folders of images in the class 'animals', animals/cats and animals/dogs", "nested=True"):
        load(tmp_path)


def test_class_may_have_one_folder_inside(tmp_path: Path) -> None:
    make_classes(tmp_path / "a", ["images"], count=2)
    make_classes(tmp_path / "b", ["images"], count=2)
    save_image(tmp_path / "b" / "more.png")
    assert load(tmp_path).train.class_counts == (2, 3)


def test_nested_folders_are_classes_by_their_path(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 1)):
        make_classes(tmp_path / split / "animals", ["cats", "dogs"], count=count)
        make_classes(tmp_path / split, ["cars"], count=count)
    splits = load(tmp_path, nested=True)
    assert splits.train.class_names == splits.test.class_names == ("animals/cats", "animals/dogs", "cars")
    assert splits.train.class_counts == (3, 3, 3) and splits.test.class_counts == (1, 1, 1)
    assert from_folder(tmp_path / "train", nested=True).class_names == splits.train.class_names


def test_train_is_an_ordinary_folder_among_nested_classes(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", ["diesel", "steam"], count=1)
    make_classes(tmp_path, ["car"], count=1)
    assert load(tmp_path, nested=True).train.class_names == ("car", "train/diesel", "train/steam")


def test_links_to_folders_inside_a_class_give_a_warning(tmp_path: Path) -> None:
    make_classes(tmp_path / "own", "ab", count=2)
    make_classes(tmp_path / "other", "c", count=2)
    (tmp_path / "own" / "c").symlink_to(tmp_path / "other" / "c")
    assert load(tmp_path / "own").train.class_names == ("a", "b", "c")  # a class itself may be a link
    with pytest.warns(UserWarning, match="links to folders are not followed: '.*own/c'"):
        assert load(tmp_path / "own", nested=True).train.class_names == ("a", "b")


def test_nested_needs_folders_of_images(tmp_path: Path, user_error: ExpectUserError) -> None:
    (tmp_path / "empty").mkdir()
    save_image(tmp_path / "0.png")
    with user_error("has no image in any folder"):
        load(tmp_path, nested=True)


def test_tree_is_short(tmp_path: Path) -> None:
    make_classes(tmp_path / "train", [f"c{number}" for number in range(5)], count=1)
    for number in range(9):
        make_classes(tmp_path / f"x{number}", "ab", count=1)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    lines = caught.value.details.splitlines()
    assert "    … and 2 more folders" in lines and len(lines) == 12 and lines[-1] == "  …"


def test_command_line_prints_the_tree_below_the_error(tmp_path: Path, condenset: CommandRunner) -> None:
    make_classes(tmp_path / "pets" / "animals", ["cats", "dogs"], count=1)
    make_classes(tmp_path / "pets", ["cars"], count=1)
    result = condenset("condense", tmp_path / "pets")
    first, *tree = result.err.splitlines()
    assert result.code == 2 and "--nested" in first
    assert tree == ["pets/", "  animals/  2 images", "    cats/  1 image", "    dogs/  1 image", "  cars/  1 image"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("train_images", "test_images"), ("train_images", "test_images")),
        (("train", "dev"), ("train", "dev")),
        (("my_val", "zoo", "my_test"), ("zoo", "my_test")),
        (("site1", "site2"), ("site1", "site2")),
    ],
)
def test_folders_with_the_same_classes_are_probably_splits(
    tmp_path: Path, condenset: CommandRunner, names: tuple[str, ...], expected: tuple[str, str]
) -> None:
    for number, name in enumerate(names):
        make_classes(tmp_path / "own" / name, ["cat", "dog"], count=3 + number)
    train, test = (tmp_path / "own" / name for name in expected)
    result = condenset("run", tmp_path / "own")
    assert result.code == 2 and f"give --train {train} --test {test}" in result.err and "--nested" not in result.err
    error = condenset("data", "check", tmp_path / "own").err
    assert f"give {train} as the dataset and --test {test}" in error
    with pytest.raises(UserError, match=f"give {train} as the dataset and test='{test}'"):
        load(tmp_path / "own")
    assert load(train, test=test).train.class_names == ("cat", "dog")


def test_nested_classes_of_the_same_name_give_a_warning(tmp_path: Path) -> None:
    for name in ("train_images", "test_images"):
        make_classes(tmp_path / name, ["cat", "dog"], count=1)
    with pytest.warns(UserWarning, match="are different classes: 'test_images/cat', 'train_images/cat'"):
        assert load(tmp_path, nested=True).train.num_classes == 4


def test_one_repeated_folder_name_is_common(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        make_classes(tmp_path / name, ["images"], count=1)
    assert load(tmp_path, nested=True).train.class_names == ("cat/images", "dog/images")


@pytest.mark.parametrize("nested", [False, True])
def test_classes_that_are_numbers_sort_as_numbers(tmp_path: Path, nested: bool) -> None:
    for split, count in (("train", 1), ("test", 2)):
        make_classes(tmp_path / split, ["10", "2", "0", "1"], count=count)
    splits = load(tmp_path, nested=nested)
    assert splits.train.class_names == splits.test.class_names == ("0", "1", "2", "10")
    images = splits.train.images
    assert (images[3] == from_folder(tmp_path / "train").images[3]).all() and (images[0] != images[3]).any()
    make_classes(tmp_path / "train", ["x"], count=1)
    assert from_folder(tmp_path / "train").class_names == ("0", "1", "10", "2", "x")
