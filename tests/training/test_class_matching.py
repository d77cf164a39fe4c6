"""Match the classes of test images with those of a set."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import condenset as cs
from condenset.data.class_selection import select_classes
from condenset.training.class_matching import align_classes
from helpers.reference_dm import tiny_data

SPEC = "convnet(width=8, depth=2)"
ONE_NETWORK: dict[str, Any] = {"network": SPEC, "num_networks": 1, "epochs": 5, "device": "cpu"}


def test_other_class_names_are_refused_but_numbers_match() -> None:
    data = tiny_data([4, 4])
    other = dataclasses.replace(data, class_names=("class 0", "class z"))
    with pytest.raises(cs.UserError, match="but it lacks 'class z' and adds 'class 1'"):
        cs.evaluate(data, other)
    numbered = dataclasses.replace(data, class_names=("0", "1"))
    assert len(cs.evaluate(data, numbered, **{**ONE_NETWORK, "epochs": 0}).accuracies) == 1
    for names in (("1", "2"), ("1", "x")):  # by position, class "1" would be tested as class "0"
        with pytest.raises(cs.UserError, match="but it lacks '0' and adds"):
            cs.evaluate(dataclasses.replace(data, class_names=names), numbered)


def test_arrays_with_other_class_names_are_matched_by_position_with_a_warning() -> None:
    data = tiny_data([4, 4])
    numbered = cs.from_arrays(data.images, data.labels)
    named = cs.from_arrays(data.images, ["zero" if label == 0 else "one" for label in data.labels])
    assert named.class_names == ("one", "zero")  # position 0 is class 1
    with pytest.warns(UserWarning, match=r"names .* differ: .* matched by position; give cs.from_arrays the same"):
        align_classes(numbered, named)
    assert align_classes(numbered, cs.from_arrays(data.images, data.labels)).class_names == ("0", "1")


@pytest.mark.parametrize("names", [("a", "b", "c"), ("0", "1", "2")])
def test_classes_in_another_order_are_matched_by_name(names: tuple[str, ...]) -> None:
    data = dataclasses.replace(tiny_data([12, 12, 12]), class_names=names)
    test_set = dataclasses.replace(tiny_data([5, 6, 7], seed=1), class_names=names)
    reversed_set = select_classes(test_set, names[::-1])
    scores = [cs.evaluate(data, images, **ONE_NETWORK).accuracies for images in (test_set, reversed_set)]
    assert scores[0] == scores[1]
    rankings = [cs.rank([SPEC], data, images, epochs=5, device="cpu") for images in (test_set, reversed_set)]
    assert rankings[0].rows[0].accuracy == rankings[1].rows[0].accuracy


def test_classes_without_test_images_are_left_out_with_a_warning() -> None:
    data = dataclasses.replace(tiny_data([6, 6, 6]), class_names=("a", "b", "c"))
    kept = data.labels != 1
    part = dataclasses.replace(data, images=data.images[kept], labels=data.labels[kept])  # three classes, one empty
    named = cs.from_arrays(part.images, [data.class_names[label] for label in part.labels])
    assert named.class_names == ("a", "c")
    for test_set in (part, named):
        with pytest.warns(UserWarning, match="^1 of 3 classes have no test images and are left out: 'b'$") as warned:
            scores = cs.evaluate(data, test_set, **ONE_NETWORK)
        assert len(warned) == 1
        first, missing, last = scores.per_class_accuracy
        assert missing is None and first is not None and last is not None
        assert scores.balanced_accuracy == pytest.approx((first + last) / 2)
    with pytest.raises(cs.UserError, match="lacks 'b'"):
        cs.evaluate(named, data, **ONE_NETWORK)
