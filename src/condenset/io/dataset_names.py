"""Names and paths of datasets, before a dataset is read."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from condenset.errors import UserError

NO_DATASET = "no dataset: give a name ('condenset data list') or a path"


def can_be_name(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether this can be the name of a dataset: it is text without a directory."""
    if not isinstance(name_or_path, str):
        return False
    return not {"/", os.sep} & set(name_or_path) and name_or_path not in (".", "..", "~")


def normalize_name(name: str) -> str:
    """Return the name without case, `-` and `_`, which do not distinguish registered datasets."""
    return name.lower().replace("-", "").replace("_", "")


def missing_dataset_error(path: Path, names: Sequence[str]) -> UserError:
    """Return the error for a dataset that does not exist.

    Args:
        path: The path or the name that the user gives.
        names: The names of all datasets. Empty: the user gives a path.
    """
    if not names:
        return UserError(f"no such folder or file: {path}")
    nearest = difflib.get_close_matches(str(path).lower(), names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return UserError(f"dataset must be one of {', '.join(names)} or a path that exists, but got '{path}'{hint}")
