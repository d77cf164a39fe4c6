"""Print tables and warnings."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from condenset.cli.streams import ENCODING_ERRORS
from condenset.errors import escape_controls


def print_line(line: str = "", *, stderr: bool = False, end: str = "\n") -> None:
    """Print one line. Control characters are escaped: names in files from outside can contain any.

    All commands print through this function, `print_lines`, `print_json` or `print_table`.
    """
    print(escape_controls(line), end=end, file=sys.stderr if stderr else sys.stdout, flush=stderr)


def print_lines(text: str, *, stderr: bool = False) -> None:
    """Print text of several lines."""
    for line in text.split("\n"):
        print_line(line, stderr=stderr)


def print_json(value: object) -> None:
    """Print a value as JSON, which has escapes for control characters. Values of other types are printed as text."""
    print(json.dumps(value, indent=1, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with borders on a terminal, else as aligned plain text."""
    lines = [[escape_controls(cell) for cell in line] for line in (columns, *rows)]
    if sys.stdout.isatty():
        _print_bordered(lines)
        return
    lines = [list(map(_as_encoded, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_bordered(lines: Sequence[Sequence[str]]) -> None:
    """Print a table with borders; the first line has the names of the columns."""
    console = Console()
    widths = _fit_columns(lines, console.width - 3 * len(lines[0]) - 1)  # without borders and padding
    table = Table()
    for name, width in zip(lines[0], widths, strict=True):
        table.add_column(Text(name), overflow="fold", width=width)  # never cut off a long word
    for line in lines[1:]:
        table.add_row(*map(Text, line))  # Text: brackets are not markup
    console.print(table)


def _fit_columns(lines: Sequence[Sequence[str]], total: int) -> list[int | None]:
    """Return the widths of columns that fit a total width without a break inside a word.

    If the longest words do not fit, the widths are None, and the table breaks words.
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    word_widths = [max((cell_len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    if sum(word_widths) > total:
        return [None] * len(columns)
    while sum(widths) > total:
        shrinkable = [number for number, width in enumerate(widths) if width > word_widths[number]]
        widths[max(shrinkable, key=widths.__getitem__)] -= 1
    return [*widths]


def _as_encoded(cell: str) -> str:
    """Return the text as standard output has it, with `+/-` for `±` if the encoding needs it."""
    encoding = sys.stdout.encoding or "utf-8"
    return cell.encode(encoding, ENCODING_ERRORS).decode(encoding)


def print_described(
    columns: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    entries: Sequence[Mapping[str, Any]],
    as_json: bool,
) -> None:
    """Print the rows as a table, or the entries that they describe as JSON."""
    if as_json:
        print_json(entries)  # fields of other packages may have any default
    else:
        print_table(columns, rows)


def format_options(options: Iterable[Mapping[str, Any]]) -> str:
    """Return options in one line, such as `width=128, norm='instance' [none, batch]`."""
    texts = []
    for item in options:
        choices = f" [{', '.join(item['choices'])}]" if "choices" in item else ""
        texts.append(f"{item['name']}={item['default']!r}{choices}")
    return ", ".join(texts)


def print_records(records: Sequence[Mapping[str, Any]], as_json: bool, *, per_class: bool = False) -> None:
    """Print the records of a run as a table, or as JSON. If all have the same networks, a line above names them."""
    from condenset.data.ipc import name_set
    from condenset.pipeline.results import format_records
    from condenset.training.scores import is_unbalanced

    if as_json:
        print(format_records(records))
        return
    accuracy = "validation %" if any(map(_is_validation, records)) else "accuracy %"
    columns = ["method", "images per class", accuracy, "networks", "condense s", "evaluate s"]
    rows = [list(_score_row(record)) for record in records]
    if any(map(is_unbalanced, records)):
        position = columns.index("networks")
        columns.insert(position, "balanced %")
        for row, record in zip(rows, records, strict=True):
            row.insert(position, _format_percent(record.get("balanced_accuracy")))
    position = columns.index("networks")
    if len({row[position] for row in rows}) == 1:
        if rows[0][position] != "-":
            print_line(f"networks: {rows[0][position]}")
        for line in (columns, *rows):
            del line[position]
    if not any("accuracy_mean" in record for record in records):  # of `condense`, which has no scores
        filled = [number for number in range(len(columns)) if any(row[number] != "-" for row in rows)]
        columns, rows = [columns[number] for number in filled], [[row[number] for number in filled] for row in rows]
    print_table(columns, rows)
    if per_class:
        _print_class_tables(records, [name_set(record["method"], record["ipc"]) for record in records])


def print_evaluation(records: Sequence[Mapping[str, Any]], as_json: bool, *, per_class: bool = False) -> None:
    """Print the records of an evaluation as a table with a row per set and a column per network, or as JSON."""
    from condenset.pipeline.results import format_records
    from condenset.pipeline.sets import shortest_names
    from condenset.training.scores import is_unbalanced

    if as_json:
        print(format_records(records))
        return
    files = list(dict.fromkeys(record["file"] for record in records))
    networks = list(dict.fromkeys(_network_name(record) for record in records))
    names = dict(zip(files, shortest_names(list(map(Path, files))), strict=True))
    cells = {(record["file"], _network_name(record)): _format_score(record) for record in records}
    columns = networks
    if any(map(is_unbalanced, records)):
        columns = [column for network in networks for column in (network, f"{network}, balanced")]
        balanced = [(record, _format_percent(record.get("balanced_accuracy"))) for record in records]
        cells |= {(record["file"], f"{_network_name(record)}, balanced"): text for record, text in balanced}
    firsts = {file: next(record for record in records if record["file"] == file) for file in files}
    datasets = _dataset_columns(list(firsts.values()))
    rows = []
    for number, (file, record) in enumerate(firsts.items()):
        origin = (*(column[number] for column in datasets.values()), str(record["method"] or "-"), _format_ipc(record))
        rows.append(
            (names[file].removesuffix(".safetensors"), *origin, *(cells.get((file, column), "-") for column in columns))
        )
    print_table(("set", *datasets, "method", "images per class", *columns), rows)
    for network in networks if per_class else ():
        scored = [record for record in records if _network_name(record) == network]
        _print_class_tables(scored, [names[record["file"]].removesuffix(".safetensors") for record in scored], network)


def _dataset_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the columns that name datasets: one, or two if a set is tested on another dataset than its own."""
    tested = [record["dataset"] for record in records]
    kinds = [" (validation)" if _is_validation(record) else "" for record in records]
    origins = [record.get("made_from") or "-" for record in records]
    if all(first in (second, _dataset_name(second), "-") for first, second in zip(origins, tested, strict=True)):
        return {"dataset": [Path(path).name + kind for path, kind in zip(tested, kinds, strict=True)]}
    has_same_names = any(
        first != second and _dataset_name(first) == _dataset_name(second)
        for first, second in zip(origins, tested, strict=True)
    )
    if has_same_names:  # the names do not tell them apart
        names = (origins, tested)
    else:
        names = ([Path(path).name for path in origins], [Path(path).name for path in tested])
    tested_on = [name + kind for name, kind in zip(names[1], kinds, strict=True)]
    return {"made from": names[0], "tested on": tested_on}


def _is_validation(record: Mapping[str, Any]) -> bool:
    return record.get("scored_on") == "validation"


def _dataset_name(dataset: str) -> str:
    return Path(dataset).name.removesuffix(".npz")


def _print_class_tables(records: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str = "") -> None:
    """Print the accuracy of each class: one table for all records with the same test images per class."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, record in enumerate(records):
        if "per_class_accuracy" in record:
            kind = "validation images" if _is_validation(record) else "test images"
            groups.setdefault((kind, tuple(record["class_names"]), tuple(record["test_images"])), []).append(number)
    for (kind, class_names, test_images), numbers in groups.items():
        accuracies = [records[number]["per_class_accuracy"] for number in numbers]
        rows = [
            (name, str(num), *(_format_percent(values[row]) for values in accuracies))
            for row, (name, num) in enumerate(zip(class_names, test_images, strict=True))
        ]
        balanced = (_format_percent(records[number].get("balanced_accuracy")) for number in numbers)
        print_lines(f"\n{title}" if title else "")
        print_table(
            ("class", kind, *(f"{labels[number]} %" for number in numbers)),
            [*rows, ("mean of classes", str(sum(test_images)), *balanced)],
        )


def _format_percent(accuracy: float | None) -> str:
    return "-" if accuracy is None else f"{100 * accuracy:.1f}"


def _format_score(record: Mapping[str, Any]) -> str:
    """Format accuracies as `63.0 ± 0.4`, with the number of networks if some are missing."""
    from condenset.training.scores import format_accuracy

    planned = record.get("planned_networks")
    note = f" ({len(record['accuracies'])} of {planned} networks)" if planned else ""
    return f"{format_accuracy(record)}{note}"


def _network_name(record: Mapping[str, Any]) -> str:
    """Return the network of a score, with how it is trained unless that is by the paper's protocol."""
    from condenset.training.scores import name_protocol

    return name_protocol(str(record["network"]), record.get("protocol"), record.get("learned_steps"))


def _format_ipc(record: Mapping[str, Any]) -> str:
    from condenset.data.ipc import format_ipc

    return format_ipc(record["ipc"] or ("all" if record["method"] == "whole" else "-"))


def _score_row(record: Mapping[str, Any]) -> tuple[str, ...]:
    from condenset.data.ipc import format_ipc
    from condenset.training.scores import format_accuracy

    has_score = "accuracy_mean" in record
    accuracy = format_accuracy(record) if has_score else "-"
    networks = f"{len(record['accuracies'])} × {_network_name(record)}" if has_score else str(record["network"] or "-")
    condense_seconds = _format_seconds(record.get("condense_seconds"))
    if record.get("pool_seconds") is not None:
        condense_seconds += f" + {_format_seconds(record['pool_seconds'])} networks"
    if "together" in record:  # sets of several sizes that took these seconds in total
        condense_seconds += f" for {', '.join(map(format_ipc, record['together']))}"
    evaluate_seconds = _format_seconds(record.get("evaluate_seconds"))
    return str(record["method"] or "-"), _format_ipc(record), accuracy, networks, condense_seconds, evaluate_seconds


def _format_seconds(seconds: float | None) -> str:
    return f"{seconds:.1f}" if seconds else "-"


def print_preview(preview: Mapping[str, str], as_json: bool) -> None:
    """Print the plan of a run, a line per entry or as a JSON object."""
    if as_json:
        print_json(preview)
        return
    width = max(map(len, preview))
    for label, text in preview.items():
        print_line(f"{label:{width}}  {text}")


def print_files(directory: Path, **files: str) -> None:
    """Print the paths of files in a directory, each after its label. Files that do not exist are left out."""
    for label, file in files.items():
        if (directory / file).exists():
            print_line(f"{label:9}{directory / file}")


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings to the user on one line without the position in the code, each text once."""
    with warnings.catch_warnings():
        default_show, shown = warnings.showwarning, set[str]()

        def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
            if not issubclass(category, UserWarning):
                default_show(message, category, *args, **kwargs)
                return
            text = str(message).partition("\nException raised from")[0]  # the C++ stack trace of torch
            if text not in shown:
                shown.add(text)
                print_line(f"condenset: warning: {' '.join(text.split())}", stderr=True)

        warnings.showwarning = show
        yield
