"""Finished sets by name: those of the package condenset-sets, or of results/sets in a source checkout."""

from __future__ import annotations

import difflib
from pathlib import Path

from condenset.data.condensed_set import CondensedSet
from condenset.errors import UserError, check_choice, check_type
from condenset.io.finished_sets import find_set_files

INSTALL = "install them in the source directory of condenset with: pip install ./packages/condenset-sets"


def list_condensed() -> list[str]:
    """Return the names of the finished sets that `load_condensed` reads, sorted.

    A name has the form DATASET-METHOD-IPC.

    Raises:
        UserError: The package condenset-sets is not installed.
    """
    names = sorted(find_set_files())
    if not names:
        raise UserError(f"finished sets need the package condenset-sets: {INSTALL}")
    return names


def load_condensed(name: str) -> CondensedSet:
    """Return a finished set, such as "cifar10-dm-10": CIFAR-10, condensed by dm to 10 images per class.

    Args:
        name: One of `list_condensed()`.

    Raises:
        UserError: There is no such set, or the package condenset-sets is not installed.

    Example:
        >>> import condenset as cs
        >>> cs.load_condensed("cifar10-dm-10")
        CondensedSet(cifar10: 100 images of 3x32x32, 10 classes; dm, 10 per class)
    """
    check_type(name, str, "the name of a finished set must be text")
    check_choice("the name of a finished set", name, list_condensed())
    return CondensedSet.load(find_set_files()[name])


def find_packaged_set(path: Path) -> Path | None:
    """Return the file of a finished set that a command names in place of a path; None if it is another path.

    Raises:
        UserError: The path does not exist, but resembles the name of a finished set.
    """
    if path.exists() or len(path.parts) != 1 or path.suffix:
        return None
    sets = find_set_files()
    if path.name not in sets and (nearest := difflib.get_close_matches(path.name, sets, n=1)):
        raise UserError(f"no such file: {path}; did you mean the finished set {nearest[0]!r}?")
    return sets.get(path.name)
