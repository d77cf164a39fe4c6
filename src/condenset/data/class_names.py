"""Sort class names, and match those of the test split with those of the training split."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

import numpy as np

from condenset.data.file_scan import DatasetWarning
from condenset.data.lazy import LazySplit
from condenset.errors import UserError, warn_user


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort class names: as numbers if all of them are numbers, else as text."""
    ordered = sorted(names)
    if all(re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", name) for name in ordered):
        ordered.sort(key=float)
    return tuple(ordered)


def match_classes(split: LazySplit, names: tuple[str, ...], class_names: tuple[str, ...], owner: str) -> LazySplit:
    """Return a split whose classes are `names` with its classes in the order of `class_names`.

    Names that differ only in case or Unicode form match, with a warning.

    Args:
        split: The split, usually the test split.
        names: Its class names.
        class_names: The class names of the training split.
        owner: What the splits belong to, for messages.
    """
    if names == class_names:
        return split
    other_form = {_fold(name): name for name in class_names if name not in names}
    matched = [name if name in class_names else other_form.get(_fold(name), name) for name in names]
    repeated = sorted({name for name in matched if matched.count(name) > 1})
    if repeated:
        rule = f"several classes of the test split differ from {repeated[0]!r} only in case or Unicode form"
        raise UserError(f"{owner}: {rule}; rename one")
    mismatch = sorted({*class_names} ^ {*matched})
    if mismatch:
        split_name = "train" if mismatch[0] in class_names else "test"
        raise UserError(f"{owner}: both splits must have the same classes, but only {split_name} has {mismatch[0]!r}")
    renamed = [(old, new) for old, new in zip(names, matched, strict=True) if old != new]
    if renamed:
        spelling = f"spells {len(renamed)} of {len(names)} class names in another case or Unicode form"
        example = f"such as {renamed[0][0]!r} for {renamed[0][1]!r}"
        warn_user(f"{owner}: the test split {spelling}, {example}: they match", DatasetWarning)
    labels = np.array([class_names.index(name) for name in matched])[split.labels]
    order = np.argsort(labels, kind="stable")
    return split.select(order, labels[order])


def _fold(name: str) -> str:
    """Return a name without its case and in one Unicode form. File systems store é as one or as two characters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
