from __future__ import annotations

import pytest

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
