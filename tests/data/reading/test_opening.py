from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condenset.data import DATASETS, LoadOptions, check_dataset, from_folder, import_dataset, load, load_test_images
from condenset.data.datasets.sources import register_dataset
from helpers.data_files import ExpectUserError, make_classes, save_image


def test_test_images_may_have_their_own_path(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "mine", "ab", count=3)
    make_classes(tmp_path / "photos", "ab", count=2, size=(9, 7))
    with user_error("train and test images must have the same shape"):
        load(tmp_path / "mine", test=tmp_path / "photos", fit="crop")
    splits = load(tmp_path / "mine", test=tmp_path / "photos", size=8)
    assert splits.train.class_counts == (3, 3) and splits.test.class_counts == (2, 2)
    assert splits.train.name == splits.test.name == "mine" and str(tmp_path / "photos") in splits.test.source
    assert (splits.test.images == from_folder(tmp_path / "photos", size=8).images).all()
    assert splits.test.mean == splits.train.mean
    with user_error("no such folder or file"):
        load(tmp_path / "mine", test=tmp_path / "nowhere")


def test_test_images_replace_the_test_split(tmp_path: Path) -> None:
    make_classes(tmp_path / "mine" / "train", "ab", count=3)
    make_classes(tmp_path / "mine" / "test", "ab", count=2)
    make_classes(tmp_path / "other", "ab", count=1)
    assert load(tmp_path / "mine", test=tmp_path / "other").test.class_counts == (1, 1)


def test_test_images_must_be_one_split_with_the_same_classes(tmp_path: Path, user_error: ExpectUserError) -> None:
    for name, count in (("mine", 2), ("both/train", 2), ("both/test", 1)):
        make_classes(tmp_path / name, "ab", count=count)
    make_classes(tmp_path / "other", "abc", count=1)
    with user_error("must be one split, but", "has several: name one of them"):
        load(tmp_path / "mine", test=tmp_path / "both")
    with user_error("the test split must have classes of the training split, but adds 'c'"):
        load(tmp_path / "mine", test=tmp_path / "other")
    assert load(tmp_path / "mine", test=tmp_path / "both" / "test").test.class_counts == (1, 1)


def import_as_own(path: Path, **options: Any) -> Path:
    return import_dataset(path, "own", **options)


@pytest.mark.parametrize("read", [load, check_dataset, import_as_own])
def test_test_images_must_not_be_the_training_images(
    tmp_path: Path, user_error: ExpectUserError, read: Callable[..., object]
) -> None:
    make_classes(tmp_path / "mine", "ab", count=2)
    for split in ("train", "test"):
        make_classes(tmp_path / "copied" / split, "ab", count=2)
    with user_error("the test images must differ from the training images, but are the same"):
        read(tmp_path / "mine", test=tmp_path / "mine")
    with user_error("the test images must differ from the training images, but are the same"):
        read(tmp_path / "copied")
    save_image(tmp_path / "copied" / "test" / "b" / "1.png", value=7)
    read(tmp_path / "copied")


@pytest.mark.parametrize("read", [load, check_dataset, import_as_own])
def test_options_without_effect_give_a_warning(tmp_path: Path, read: Callable[..., object]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8), np.uint8)
    np.savez(tmp_path / "arrays.npz", images=images, labels=np.arange(4) % 2)
    with pytest.warns(UserWarning, match=r"^options without effect on .*: white_level=4095, nested=True$"):
        read(tmp_path / "arrays.npz", fit="crop", nested=True, white_level=4095)


def test_options_are_used_if_they_have_an_effect_on_the_test_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "photos", "0123456789", count=1, size=(9, 8), mode="L")
    assert load("digits", test=tmp_path / "photos", fit="crop").test.size == 8
    import_dataset("digits", "own")
    assert load("own", test=tmp_path / "photos", fit="crop").test.size == 8
    with pytest.warns(UserWarning, match="^options without effect on own: skip_bad=True$"):
        load("own", skip_bad=True)


def test_npz_file_can_have_the_test_images(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.arange(20) % 10)
    assert load("digits", test=tmp_path / "test.npz").test.class_counts == (2,) * 10


def test_grey_and_coloured_splits_have_three_channels(tmp_path: Path) -> None:
    make_classes(tmp_path / "grey", "ab", count=2, mode="L")
    make_classes(tmp_path / "colour", "ab", count=2)
    grey = load(tmp_path / "grey").train.images
    for train, test in (("grey", "colour"), ("colour", "grey")):
        splits = load(tmp_path / train, test=tmp_path / test)
        assert splits.train.channels == splits.test.channels == 3 and len(splits.train.mean) == 3
        assert ((splits.train if train == "grey" else splits.test).images == grey).all()


def test_test_classes_get_the_order_of_the_training_classes(tmp_path: Path, user_error: ExpectUserError) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[0, 1], class_names=["dog", "cat"])
    make_classes(tmp_path / "test", ["cat", "dog"], count=1, size=(4, 4), mode="L")
    splits = load(tmp_path / "train.npz", test=tmp_path / "test")
    assert splits.test.class_names == ("dog", "cat")
    assert (splits.test.images == from_folder(tmp_path / "test").images[[1, 0]]).all()
    make_classes(tmp_path / "other", ["Cat", "dog"], count=1, size=(4, 4), mode="L")
    with user_error("the test split must have classes of the training split, but adds 'Cat': rename it"):
        load(tmp_path / "train.npz", test=tmp_path / "other")


def test_hold_out_is_refused_if_there_is_a_test_split(tmp_path: Path, user_error: ExpectUserError) -> None:
    with user_error("digits has a test split, so there is nothing to hold out: leave out test_share="):
        load("digits", test_share=0.2)


def test_imported_dataset_may_have_no_test_split(tmp_path: Path, user_error: ExpectUserError) -> None:
    make_classes(tmp_path / "mine", "ab", count=4)
    directory = import_dataset(tmp_path / "mine", "all")
    assert load("all").train.class_counts == (4, 4) and load("all").test is None
    assert not (directory / "test-images.npy").exists()
    with user_error("all was imported without test images", "import it again with test_share=0.2"):
        load("all", test_share=0.2)
    import_dataset("all", "held", test_share=0.5)
    assert load("held").train.class_counts == load("held").test.class_counts == (2, 2)


def test_imported_dataset_takes_other_test_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "mine", "ab", count=3)
    make_classes(tmp_path / "photos", "ab", count=2)
    import_dataset(tmp_path / "mine", "all")
    direct = load(tmp_path / "mine", test=tmp_path / "photos")
    import_dataset(tmp_path / "mine", "both", test=tmp_path / "photos")
    for splits in (load("all", test=tmp_path / "photos"), load("both")):
        assert splits.train.fingerprint == direct.train.fingerprint
        assert splits.test.fingerprint == direct.test.fingerprint


def test_load_test_images_returns_the_test_split_or_all_images(tmp_path: Path) -> None:
    make_classes(tmp_path / "mine", "ab", count=4)
    assert load_test_images("digits").fingerprint == load("digits").test.fingerprint
    whole = load(tmp_path / "mine").train
    assert load_test_images(tmp_path / "mine").fingerprint == whole.fingerprint
    held_out = load_test_images(tmp_path / "mine", options=LoadOptions(test_share=0.25))
    assert (held_out.images == whole.images[[0, 4]]).all()
    import_dataset(tmp_path / "mine", "all")
    assert load_test_images("all").fingerprint == whole.fingerprint


def test_registered_dataset_with_another_number_of_images_gives_a_warning() -> None:
    register_dataset(dataclasses.replace(DATASETS["digits"], name="my_digits", num_train=1500))
    try:
        with pytest.warns(UserWarning, match="my_digits should have 1500 train and 364 test images, but has 1433 and"):
            load("my_digits")
    finally:
        DATASETS.unregister("my_digits")
