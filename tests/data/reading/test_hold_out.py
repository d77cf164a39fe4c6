from __future__ import annotations

import numpy as np
import pytest

from condenset.data.reading.hold_out import hold_out
from helpers.data_files import ExpectUserError


def test_hold_out_is_a_fifth_of_every_class(user_error: ExpectUserError) -> None:
    labels = np.array([1, 0, 1, 0, 1, 1, 1, 1, 0])
    train, test = hold_out(labels, ("a", "b"), "x")
    assert test.tolist() == [0, 1, 7] and train.tolist() == [2, 3, 4, 5, 6, 8]
    with user_error("x: every class must have two images", "but 'b' has one", "test='PATH'"):
        hold_out(np.array([0, 0, 1]), ("a", "b"), "x")
    with user_error("but 'b', 'c', 'd', 'e', 'f', … have one"):
        hold_out(np.array([0, 0, 1, 2, 3, 4, 5, 6]), tuple("abcdefg"), "x")


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.2, [0, 5]),
        (0.25, [0, 4, 8]),
        (0.5, [0, 2, 4, 6, 8]),
        (1 / 3, [0, 3, 6, 9]),
        (0.7, [0, 1, 2, 4, 5, 7, 8]),
        (1e-9, [0]),
        (0.999999, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_test_images_are_evenly_spaced(share: float, expected: list[int]) -> None:
    labels = np.repeat([0, 1], 10)
    train, test = hold_out(labels, ("a", "b"), "x", share)
    assert test.tolist() == [*expected, *(row + 10 for row in expected)]
    assert sorted([*train, *test]) == list(range(20))


def test_small_classes_have_a_training_and_a_test_image() -> None:
    train, test = hold_out(np.array([0, 0, 1, 1, 1]), ("a", "b"), "x", 0.9)
    assert test.tolist() == [0, 2, 3] and train.tolist() == [1, 4]
