from __future__ import annotations

import pytest
import torch

import condenset as cs
from condenset.training.scores import format_accuracy


def test_scores_format() -> None:
    scores = cs.Scores(accuracies=(0.62, 0.64), network="ConvNet")
    assert str(scores) == "63.0 ± 1.0 (2 × ConvNet)"
    assert scores.mean == pytest.approx(0.63)
    assert scores.std == pytest.approx(0.01)


def test_scores_of_one_network_have_no_deviation() -> None:
    for accuracies, text in (((0.5,), "50.0"), ((0.49, 0.51), "50.0 ± 1.0")):
        scores = cs.Scores(accuracies=accuracies, network="ConvNet")
        assert str(scores) == f"{text} ({len(accuracies)} × ConvNet)"
        assert format_accuracy({"accuracies": accuracies, "accuracy_mean": 0.5, "accuracy_std": 0.01}) == text


def test_scores_have_the_accuracy_of_each_class() -> None:
    confusion = torch.tensor([[3, 1, 0], [2, 4, 0], [0, 0, 0]])  # of two networks
    scores = cs.Scores(accuracies=(0.6, 0.8), network="ConvNet", confusion=confusion)
    assert scores.test_images == (2, 3, 0)
    assert scores.per_class_accuracy == pytest.approx((3 / 4, 4 / 6, None))
    assert scores.balanced_accuracy == pytest.approx((3 / 4 + 4 / 6) / 2)  # of the classes with test images
    assert scores == cs.Scores(accuracies=(0.6, 0.8), network="ConvNet")
    unknown = cs.Scores(accuracies=(0.5,), network="ConvNet")
    assert (unknown.per_class_accuracy, unknown.balanced_accuracy, unknown.test_images) == ((), None, ())
