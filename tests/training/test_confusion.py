from __future__ import annotations

import pytest
import torch

from condenset.training.confusion import confusion_matrix, count_predictions, is_cell_counts

LABELS, PREDICTIONS = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 0, 2, 2])


def test_counts_of_predictions_add_up_to_a_confusion_matrix() -> None:
    counts = count_predictions(LABELS, PREDICTIONS, 3)
    assert counts == [0, 1, 1, 1, 4, 1, 6, 1, 8, 2]
    assert confusion_matrix([counts], 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert confusion_matrix([counts, counts], 3).tolist() == [[2, 2, 0], [0, 2, 0], [2, 0, 4]]


@pytest.mark.parametrize(
    "value", [None, [], [0], [0, 6.0], ["0", 6], [9, 6], [-1, 6], [0, 5], [0, 7, 1, -1], [0, True, 1, 5]]
)
def test_damaged_counts_are_refused(value: object) -> None:
    assert is_cell_counts([0, 6], 3, 6)
    assert is_cell_counts(count_predictions(LABELS, PREDICTIONS, 3), 3, 6)
    assert not is_cell_counts(value, 3, 6)
