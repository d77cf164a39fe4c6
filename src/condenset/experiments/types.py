"""Results of an experiment: records for programs, a table and a figure for readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

from condenset.io.metadata import read_json
from condenset.pipeline.results import Record, is_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENVIRONMENT_FIELDS = ("device", "hardware", "precision", "version")  # of a record


class Table(NamedTuple):
    """Text in rows and columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """Results of an experiment.

    Attributes:
        records: One record per measurement, for results.json.
        table: The table in the layout of the paper.
        draw: Return the figure, without a title.
        ipcs: Images per class of the sets.
        figure_ipcs: Images per class of the sets that the figure shows. Empty: all of them.
    """

    records: Sequence[Mapping[str, Any]]
    table: Table
    draw: Callable[[], Figure]
    ipcs: Sequence[int] = ()
    figure_ipcs: Sequence[int] = ()


def read_record(path: Path, required: Collection[str] = ()) -> Record:
    """Read the record of a part.

    Raises:
        UserError: The file is damaged or lacks one of the required fields.
    """
    hint = "delete it to run this part again"
    record: Record = read_json(
        path, "a record of condenset", hint=hint, is_valid=lambda value: is_record(value, required)
    )
    return record


def summarize_accuracies(accuracies: Sequence[float]) -> Record:
    """Return the score fields of a record: all accuracies, their mean and their standard deviation."""
    return {"accuracies": accuracies, "accuracy_mean": fmean(accuracies), "accuracy_std": pstdev(accuracies)}


def environment_fields(record: Mapping[str, Any]) -> Record:
    """Return the fields of a record that describe where it was measured: device, hardware, precision and version."""
    return {name: record[name] for name in ENVIRONMENT_FIELDS if name in record}
