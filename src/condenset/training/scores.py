"""Test accuracies of networks trained on one set."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from torch import Tensor

MAX_IMBALANCE = 2.0  # of the largest and the smallest class; beyond it, tables show the balanced accuracy


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Test accuracies of the networks trained on one set under one protocol.

    Prints as `63.0 ± 0.4 (20 × ConvNet)`, and `(20 × ConvNet, modern)` if the protocol is not the paper's.

    Attributes:
        accuracies: The accuracy of each network, as a fraction.
        network: The display name of the network.
        protocol: The fields of the protocol, the seed and the precision.
        seconds: The time of training and testing.
        confusion: (K, K) int64, the number of test images by class and predicted class, summed over the networks.
            None: unknown.

    Example:
        >>> import condenset as cs
        >>> scores = cs.Scores(accuracies=(0.626, 0.634), network="ConvNet")
        >>> print(scores)
        63.0 ± 0.4 (2 × ConvNet)
        >>> round(scores.mean, 3)
        0.63
    """

    accuracies: tuple[float, ...]
    network: str
    protocol: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    confusion: Tensor | None = field(default=None, repr=False, compare=False)

    @property
    def mean(self) -> float:
        """The mean accuracy."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def std(self) -> float:
        """The population standard deviation, as in the paper's tables."""
        return math.sqrt(sum((accuracy - self.mean) ** 2 for accuracy in self.accuracies) / len(self.accuracies))

    @property
    def test_images(self) -> tuple[int, ...]:
        """The number of test images per class."""
        return () if self.confusion is None else tuple((self.confusion.sum(1) // len(self.accuracies)).tolist())

    @property
    def per_class_accuracy(self) -> tuple[float | None, ...]:
        """The mean accuracy on the test images of each class, or None for a class without test images."""
        if self.confusion is None:
            return ()
        pairs = zip(self.confusion.diag().tolist(), self.confusion.sum(1).tolist(), strict=True)
        return tuple(right / num if num else None for right, num in pairs)

    @property
    def balanced_accuracy(self) -> float | None:
        """The mean of the accuracies of the classes that have test images. None: unknown."""
        accuracies = [accuracy for accuracy in self.per_class_accuracy if accuracy is not None]
        return fmean(accuracies) if accuracies else None

    def __repr__(self) -> str:
        return f"<Scores: {self}>"

    def __str__(self) -> str:
        record = {"accuracies": self.accuracies, "accuracy_mean": self.mean, "accuracy_std": self.std}
        network = name_protocol(self.network, self.protocol.get("schedule"), self.protocol.get("learned_steps"))
        return f"{format_accuracy(record)} ({len(self.accuracies)} × {network})"


def name_protocol(text: str, protocol: str | None, learned_steps: object = None) -> str:
    """Return a text, such as a network in a table, with how it is trained unless that is by the paper's protocol."""
    named = text if protocol in (None, "paper") else f"{text}, {protocol}"
    return f"{named}, own steps" if learned_steps else named


def format_accuracy(record: Mapping[str, Any]) -> str:
    """Format the accuracies of a record as `63.0 ± 0.4`, or as `63.0` for a single network."""
    deviation = f" ± {100 * record['accuracy_std']:.1f}" if len(record["accuracies"]) > 1 else ""
    return f"{100 * record['accuracy_mean']:.1f}{deviation}"


def name_accuracy(records: Iterable[Mapping[str, Any]]) -> str:
    """Return `test accuracy` or `validation accuracy`; `accuracy` if the records are scored on both kinds."""
    kinds = {record.get("scored_on", "test") for record in records} or {"test"}
    return "accuracy" if len(kinds) > 1 else f"{kinds.pop()} accuracy"


def is_unbalanced(record: Mapping[str, Any]) -> bool:
    """Return whether the numbers of test images differ so much that rare classes hardly count in the accuracy."""
    counts = [count for count in record.get("test_images", ()) if count]
    return bool(counts) and max(counts) > MAX_IMBALANCE * min(counts)
