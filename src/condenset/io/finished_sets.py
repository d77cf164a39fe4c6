"""The files of the finished sets: in results/sets of a source checkout, or in the package condenset-sets."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

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
