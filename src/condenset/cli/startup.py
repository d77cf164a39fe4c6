"""Import PyTorch for a command. It takes seconds: simple mistakes are found before, and a terminal shows a line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from condenset.cli.common import check_set_exists, parse_methods
from condenset.cli.completion import DATASETS, METHODS, list_imported, list_plugins
from condenset.cli.console import print_line
from condenset.errors import check_choice
from condenset.io.dataset_names import can_be_name, missing_dataset_error, normalize_name
from condenset.io.files import open_file
from condenset.io.finished_set_files import find_finished_set
from condenset.io.metadata import check_no_run
from condenset.io.user_directories import expand_user

STATUS = "Loading PyTorch"


def import_torch(
    *,
    dataset: str | None = None,
    data_dir: Path | None = None,
    methods: list[str] | None = None,
    sets: Sequence[Path] = (),
    config: Path | None = None,
    out: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Import PyTorch, and show a line on a terminal meanwhile.

    The arguments are those of the command. Mistakes that can be found without PyTorch are errors before the import.
    The library checks everything again.
    """
    if "torch" in sys.modules:  # there is no time to save
        return
    if dataset is not None:
        _check_dataset(dataset, data_dir)
    if not list_plugins("methods"):
        for method in parse_methods(methods, METHODS):
            check_choice("method", method, METHODS)
    for path in sets:
        if not path.exists() and not find_finished_set(path):
            check_set_exists(path)
    if config is not None:
        with open_file(config):
            pass
    if out is not None and not overwrite:
        check_no_run(out)
    with _show_status():
        import torch  # noqa: F401


def _check_dataset(dataset: str, data_dir: Path | None) -> None:
    """Raise a UserError if a dataset does not exist. Datasets of other packages may have any name."""
    path = expand_user(dataset)
    if path.exists() or path.suffix == ".npz":  # whose error is another one
        return
    if not can_be_name(dataset):
        raise missing_dataset_error(path, [])
    names = [*DATASETS, *list_imported(data_dir)]
    if normalize_name(dataset) not in map(normalize_name, names) and not list_plugins("datasets"):
        raise missing_dataset_error(path, names)


@contextlib.contextmanager
def _show_status() -> Iterator[None]:
    """Show a line on a terminal in the block."""
    if not sys.stderr.isatty():
        yield
        return
    print_line(STATUS, stderr=True, end="\r")
    try:
        yield
    finally:
        print_line(" " * len(STATUS), stderr=True, end="\r")
