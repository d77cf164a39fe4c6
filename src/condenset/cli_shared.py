"""What commands share: options that were given, loading, stopping, listing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from condenset.errors import UserError, check

if TYPE_CHECKING:
    from condenset.experiments.settings import Settings
    from condenset.plans import Plan
    from condenset.runs import Run
    from condenset.types import Splits


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {key: value for key, value in options.items() if value is not None}


def method_names(texts: list[str] | None, every: Iterable[str]) -> tuple[str, ...]:
    """The methods that were given, one by one or joined by commas; `all` stands for every one."""
    given_names = [name for text in texts or () for each in text.split(",") if (name := each.strip())]
    check(bool(given_names) or not texts, "--method must name a method ('condenset methods')", ",".join(texts or ()))
    names = [name for each in given_names for name in (every if each == "all" else (each,))]
    return tuple(dict.fromkeys(names))


def ipc_numbers(texts: list[str] | None) -> tuple[int, ...]:
    """The numbers of images a class that were given, one by one or joined by commas."""
    parts = [part.strip() for text in texts or () for part in text.split(",")]
    for part in parts:
        check(re.fullmatch(r"-?[0-9]{1,18}", part) is not None, "--ipc must be whole numbers such as 1,10,50", part)
    return tuple(map(int, parts))


def in_bytes_or_none(memory: str | None) -> int | None:
    from condenset.sizes import in_bytes

    return None if memory is None else in_bytes(memory)


def load(dataset: str, data_dir: Path | str | None = None, size: int | None = None) -> Splits:
    from condenset import data

    return data.load(dataset, data_dir=data_dir, size=size)


def load_again(plan: Plan | Settings, folder: Path, moved: str | None = None) -> Splits:
    """The data that a run or experiment in this folder began with, now perhaps elsewhere; others are refused."""
    try:
        splits = load(moved or plan.dataset, plan.data_dir, plan.size)
    except UserError as error:
        raise UserError(f"{error}; if it has moved, --dataset or --data-dir says where to") from None
    other = splits.train.fingerprint != plan.fingerprint
    if other or plan.test_fingerprint not in ("", splits.test.fingerprint):
        if moved:
            raise UserError(f"{moved} is not the data that {folder} began with")
        raise UserError(f"{plan.dataset} is no longer the data that {folder} began with: start a new run")
    if not moved:
        return splits
    name = Path(plan.dataset).name.removesuffix(".npz")  # by which it has its defaults
    halves = {key: dataclasses.replace(getattr(splits, key), name=name) for key in ("train", "test")}
    return dataclasses.replace(splits, **halves)


def print_files(folder: Path, **files: str) -> None:
    """Where what is in the folder lies, of files by what they are."""
    for what, file in files.items():
        if (folder / file).exists():
            print(f"{what:9}{folder / file}")


def print_rows(
    columns: tuple[str, str, str], rows: list[tuple[str, str, str]], as_json: bool, *, third: str = "options"
) -> None:
    """What there is, by name, as a table or as JSON, whose third key is given."""
    from condenset.console import print_table

    if as_json:
        print(json.dumps([dict(zip(("name", "about", third), row, strict=True)) for row in rows], indent=1))
    else:
        print_table(columns, rows)


def print_records(records: list[dict[str, Any]], as_json: bool) -> None:
    """Scores, as a table or as JSON."""
    from condenset.console import print_scores

    if as_json:
        print(json.dumps(records, indent=1))
    else:
        print_scores(records)


@contextlib.contextmanager
def watched(run: Run, hint: str = "") -> Iterator[None]:
    """Progress on, warnings in a line, and Ctrl-C (or SIGTERM) taken at a step's end: exit code 130 (or 143)."""
    from condenset.console import Shown, interruptible, plain_warnings

    run.progress = Shown()
    try:
        with interruptible(run), plain_warnings():
            yield
    except BaseException as error:
        # A signal that meets a library half-way in or out of something can come out of it as an error of its own.
        stopped = isinstance(error, KeyboardInterrupt) or (run.stop_requested and isinstance(error, Exception))
        if not stopped:
            raise
        print(f"stopped{hint}", file=sys.stderr)
        raise SystemExit(128 + (run.stop_requested or signal.SIGINT)) from None


def anchored(dataset: str, data_dir: str | None) -> str:
    """A path stays right when the run is resumed from another folder; a name stays a name."""
    from condenset.data.imported import imported_names
    from condenset.data.sources import data_folder, find_source

    path = Path(dataset).expanduser()
    named = os.sep not in dataset and (find_source(dataset) or dataset in imported_names(data_folder(data_dir)))
    return dataset if named or not path.exists() else str(path.absolute())
