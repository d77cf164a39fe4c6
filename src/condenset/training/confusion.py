"""Count the predictions of networks by class. The counts of one network are a short list for events.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor


def count_predictions(labels_N: Tensor, predictions_N: Tensor, num_classes: int) -> list[int]:
    """Return the cells of the confusion matrix that are not zero, as [cell, count, cell, count, …].

    The cell of an image is `label * num_classes + prediction`.
    """
    cells, counts = (labels_N * num_classes + predictions_N).unique(return_counts=True)
    cell_counts: list[int] = torch.stack([cells, counts], 1).flatten().tolist()
    return cell_counts


def is_cell_counts(value: object, num_classes: int, num_images: int) -> TypeGuard[list[int]]:
    """Return whether a value read from a file can be the result of `count_predictions`."""
    if not isinstance(value, list) or len(value) % 2 or not all(type(number) is int for number in value):
        return False
    cells, counts = value[::2], value[1::2]
    in_range = all(0 <= cell < num_classes**2 for cell in cells) and all(count > 0 for count in counts)
    return in_range and sum(counts) == num_images


def confusion_matrix(networks: Iterable[Sequence[int]], num_classes: int) -> Tensor:
    """Return the sum of the confusion matrices of networks, (K, K) int64: labels by predictions."""
    confusion = torch.zeros(num_classes**2, dtype=torch.int64)
    for cell_counts in networks:
        cells, counts = torch.tensor(cell_counts, dtype=torch.int64).view(-1, 2).unbind(1)
        confusion.index_add_(0, cells, counts)
    return confusion.view(num_classes, num_classes)
