"""Finished sets by name: those of the package condenset-sets, or of results/sets in a source checkout."""

from __future__ import annotations

import os

from condenset.data.condensed_set import CondensedSet
from condenset.errors import UserError, check_choice, check_type
from condenset.io.finished_set_files import find_set_files

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
    files = find_set_files()
    if name not in files and _is_path(name):
        raise UserError(f"load_condensed reads finished sets by name: read '{name}' with cs.CondensedSet.load(path)")
    check_type(name, str, "the name of a finished set must be text")
    check_choice("the name of a finished set", name, list_condensed())
    return CondensedSet.load(files[name])


def _is_path(name: object) -> bool:
    """Return whether a value is a path, not a name: it has a directory or the suffix of a set file, or exists."""
    if not isinstance(name, str):
        return isinstance(name, os.PathLike)
    return os.path.basename(name) != name or name.endswith(".safetensors") or os.path.exists(name)
