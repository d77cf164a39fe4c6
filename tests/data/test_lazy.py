from __future__ import annotations

import numpy as np

from condenset.data.lazy import hold_out
from helpers.data_files import ExpectUserError


def test_hold_out_is_a_fifth_of_every_class(user_error: ExpectUserError) -> None:
    labels = np.array([1, 0, 1, 0, 1, 1, 1, 1, 0])
    train, test = hold_out(labels, ("a", "b"), "x")
    assert test.tolist() == [0, 1, 7] and train.tolist() == [2, 3, 4, 5, 6, 8]
    with user_error("class 'b' has one image"):
        hold_out(np.array([0, 0, 1]), ("a", "b"), "x")
