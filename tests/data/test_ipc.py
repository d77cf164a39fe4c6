"""Images per class: one number, one per class, numbers by class name, or a share of each class."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from condenset import UserError
from condenset.data.ipc import check_ipc, expand_ipc, format_ipc, mean_ipc, resolve_ipc
from helpers.reference_dm import tiny_data

DATA = tiny_data([30, 5, 12])


@pytest.mark.parametrize(
    ("ipc", "expected"),
    [
        (3, 3),
        (np.int64(3), 3),
        ([3, 5, 2], (3, 5, 2)),
        ((3, 5, 2), (3, 5, 2)),
        (np.array([3, 5, 2]), (3, 5, 2)),
        (torch.tensor([3, 5, 2]), (3, 5, 2)),
        ([4, 4, 4], 4),
        ({"class 2": 2, "class 0": 3, "class 1": 5}, (3, 5, 2)),
    ],
)
def test_numbers_are_in_the_order_of_the_classes(ipc: Any, expected: object) -> None:
    resolved = resolve_ipc(DATA, ipc)
    assert resolved == expected and type(resolved) is type(expected)


def test_numbers_can_be_given_by_integer_class() -> None:
    data = tiny_data([4, 4])
    object.__setattr__(data, "class_names", ("0", "7"))
    assert resolve_ipc(data, {7: 1, 0: 2}) == (2, 1)


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.1, (3, 1, 1)), (1, (30, 5, 12)), (0.25, (8, 1, 3)), (1e-6, 1), (np.float32(0.1), (3, 1, 1))],
)
def test_a_share_gives_every_class_at_least_one_image(share: float, expected: object) -> None:
    assert resolve_ipc(DATA, share=share) == expected


def test_a_class_with_fewer_images_gets_the_number_it_has() -> None:
    assert resolve_ipc(DATA, 10, allow_fewer=True) == (10, 5, 10)
    assert resolve_ipc(DATA, [3, 9, 2], allow_fewer=True) == (3, 5, 2)
    assert resolve_ipc(DATA, 5, allow_fewer=True) == 5
    assert resolve_ipc(DATA, 10) == 10
    with_empty_class = dataclasses.replace(DATA, class_names=(*DATA.class_names, "empty"))
    assert resolve_ipc(with_empty_class, 2, allow_fewer=True) == (2, 2, 2, 1)  # an error when the set is made


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), "0.1", True])
def test_an_invalid_share_is_refused(share: Any) -> None:
    with pytest.raises(UserError, match=r"ipc_share must be a number above 0, at most 1, but got"):
        resolve_ipc(DATA, share=share)


@pytest.mark.parametrize(
    ("ipc", "message"),
    [
        ([3, 5], r"ipc must have one number for each of the 3 classes, but got \[3, 5\]"),
        ([], r"ipc must have one number per class, but got \[\]"),
        ([3, 0, 2], "ipc .* must be a whole number, 1 or more, but got 0"),
        ([3, 1.5, 2], "ipc .* must be a whole number, 1 or more, but got 1.5"),
        ([[3], 5, 2], r"ipc .* must be a whole number, 1 or more, but got \[3\]"),
        ("352", "ipc .* must be a whole number, 1 or more, but got '352'"),
        ({"class 0": 3}, "ipc must have a number for every class, but lacks 'class 1', 'class 2'"),
        (
            {"class 0": 3, "class 1": 5, "class 2": 2, "class 3": 2},
            r"ipc must name classes of the data \('class 0', 'class 1', 'class 2'\), but got 'class 3'",
        ),
    ],
)
def test_invalid_numbers_are_refused(ipc: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_ipc(DATA, ipc)


def test_numbers_are_checked_before_the_classes_are_known() -> None:
    assert check_ipc([3, 5]) == (3, 5)
    assert expand_ipc(3, 2) == [3, 3]
    with pytest.raises(UserError, match="1 or more, but got 0"):
        check_ipc([3, 0])


def test_the_mean_is_rounded() -> None:
    assert [mean_ipc(ipc) for ipc in (7, (1, 1, 2), (1, 2, 2))] == [7, 1, 2]


def test_different_numbers_are_shown_as_a_range() -> None:
    assert [format_ipc(ipc) for ipc in (10, (3, 47, 5), [3, 47], [4, 4])] == ["10", "3–47", "3–47", "4"]
    assert format_ipc((3, 47), "to") == "3to47"
    assert [format_ipc(ipc) for ipc in (None, [], ["a"])] == ["None", "[]", "['a']"]  # of a file from elsewhere
