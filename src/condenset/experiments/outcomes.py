"""What an experiment is, what it finds, and the records that it is found in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from condenset.errors import UserError
from condenset.recipes import RECIPES
from condenset.workflow import is_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from condenset.experiments.common import Lab

Record = dict[str, Any]


class Table(NamedTuple):
    """Text in rows and columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment found: records for machines, a table and a figure for people."""

    records: Sequence[Mapping[str, Any]]
    table: Table
    draw: Callable[[], Figure]  # the figure, without what is said of every experiment's
    ipcs: Sequence[int] = ()  # images a class of its sets
    shown: Sequence[int] = ()  # of those that the figure shows, if not all


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One of the paper's tables or figures."""

    title: str
    perform: Callable[[Lab], Outcome] | None  # None: not there yet
    methods: tuple[str, ...] = ()  # that it compares, unless told otherwise
    only: tuple[str, ...] = ()  # that it can compare; none: any
    beside: tuple[str, ...] = ()  # what else it compares, named like a method but making no set
    fixed: tuple[str, ...] = ()  # fields of their recipes that are the experiment's own to choose
    scored: bool = True  # networks are trained on the sets
    whole: bool = False  # and on the whole dataset
    repeated: bool = False  # with several sets, each of a seed of its own
    sizes: bool = False  # with sets of several sizes
    dataset: str = "cifar10"  # what the paper ran it on

    @property
    def names(self) -> tuple[str, ...]:
        """All that it can compare."""
        return (*(self.only or RECIPES), *self.beside)


def read_record(path: Path, needed: Collection[str] = ()) -> Record:
    """A part's record, which must have these fields; a file that is none is named."""
    record: object = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read_text(encoding="utf-8"))
    if not is_record(record, needed):
        raise UserError(f"{path} is not a record of condenset; delete it to do this part again")
    return record


def made_on(record: Mapping[str, Any]) -> Record:
    """What a part's record says of where and by what it came about (`Lab.made_on`)."""
    return {key: record[key] for key in ("device", "hardware", "precision", "version") if key in record}
