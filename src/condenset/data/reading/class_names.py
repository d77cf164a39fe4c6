"""Sort class names, and match those of the test split with those of the training split."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from condenset.data.reading.lazy import LazySplit
from condenset.errors import UserError


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names: as numbers if all of them are numbers, else as text."""
    ordered = sorted(names)
    if all(re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", name) for name in ordered):
        ordered.sort(key=float)
    return tuple(ordered)


def match_classes(split: LazySplit, names: tuple[str, ...], class_names: tuple[str, ...], owner: str) -> LazySplit:
    """Return a test split whose classes are `names` with the labels of `class_names`, which contain them.

    Args:
        split: The test split.
        names: Its class names.
        class_names: The class names of the training split.
        owner: What the splits belong to, for messages.
    """
    if names == class_names:
        return split
    if mismatch := sorted({*names} - {*class_names}):
        rule, name = f"{owner}: the test split must have classes of the training split", mismatch[0]
        code = "" if name.isascii() else f" ({name!a})"  # two Unicode forms of a name look the same
        raise UserError(f"{rule}, but adds {name!r}{code}: rename it, or add it to the training split")
    labels = np.array([class_names.index(name) for name in names])[split.labels]
    order = np.argsort(labels, kind="stable")
    return split.select(order, labels[order])
