"""The files of the finished sets: in results/sets of a source checkout, or in the package condenset-sets."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from condenset.errors import UserError

CHECKOUT = Path(__file__).parents[3]  # the source directory, unless condenset is installed as a package
PACKAGE = "condenset_sets"


def find_set_files(checkout: Path = CHECKOUT) -> dict[str, Path]:
    """Return the files of the finished sets by name: those of the checkout, else those of the package."""
    directory = checkout / "results" / "sets"
    if not ((checkout / "pyproject.toml").is_file() and directory.is_dir()):
        try:
            directory = Path(str(files(PACKAGE))) / "sets"
        except ModuleNotFoundError:
            return {}
    return {path.stem: path for path in directory.glob("*.safetensors")}


def find_finished_set(path: Path) -> Path | None:
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
