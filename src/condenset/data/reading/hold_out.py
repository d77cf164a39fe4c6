"""Hold out a part of every class for the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from condenset.data.reading.lazy import Labels, LazyDataset, Rows, check_labels
from condenset.errors import UserError, format_names, option

TEST_SHARE = 0.2  # of every class, where a test is needed and the dataset has no test split
MAX_DENOMINATOR = 1_000_000  # of a share as a fraction
MAX_NAMED_CLASSES = 5  # in an error message


def hold_out(labels: Labels, class_names: Sequence[str], owner: str, share: float = TEST_SHARE) -> tuple[Rows, Rows]:
    """Return (train, test) rows: the test images of a class are its first image and evenly spaced ones after it.

    Args:
        labels: (N,).
        class_names: K names.
        owner: What the labels belong to, for error messages.
        share: The share of test images, between 0 and 1. With 0.2, every fifth image is one. Every class has at least
            one training and one test image.
    """
    check_labels(labels, class_names, owner)
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=len(class_names))
    if counts.min() < 2:
        small = [name for name, count in zip(class_names, counts, strict=True) if count < 2]
        names = f"{format_names(small, MAX_NAMED_CLASSES)} {'has' if len(small) == 1 else 'have'} one"
        rule = f"{owner}: every class must have two images to hold one out for the test"
        raise UserError(f"{rule}, but {names}; add images, or give the test images with {option('test', 'PATH')}")
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(labels)) - np.repeat(starts, counts)
    fraction = max(Fraction(share).limit_denominator(MAX_DENOMINATOR), Fraction(1, MAX_DENOMINATOR))
    # The first n images of a class contain ceil(n * share) test images.
    is_test = _ceil(rank + 1, fraction) > _ceil(rank, fraction)
    all_test = np.add.reduceat(is_test, starts) == counts
    is_test[(starts + counts - 1)[all_test]] = False
    return np.sort(order[~is_test]), np.sort(order[is_test])


def _ceil(numbers: Rows, fraction: Fraction) -> Rows:
    """Return numbers * fraction, rounded up."""
    return -(-numbers * fraction.numerator // fraction.denominator)


def hold_out_test(dataset: LazyDataset, share: float) -> LazyDataset:
    """Return a dataset without a test split as one whose test split is a share of every class."""
    train, test = hold_out(dataset.train.labels, dataset.class_names, dataset.source, share)
    return dataclasses.replace(
        dataset,
        train=dataset.train.select(train),
        test=dataset.train.select(test),
        source=f"{dataset.source}; {format_share(share)} of every class is held out for the test",
    )


def format_share(share: float) -> str:
    """Return a share as text, such as 20%."""
    return f"{100 * share:.3g}%"
