"""Fill the tables of the results pages from the records in docs/results/*.json.

python docs/tools/results.py            # rewrite the tables in all pages
python docs/tools/results.py --check    # exit with 1 and name the pages whose tables differ

A page marks a table by a comment, and the script replaces what follows up to `<!-- end -->`:

    <!-- table: cifar10.json method=dm columns=ipc,paper,accuracy,networks -->
    <!-- end -->

See docs/results/README.md for the options.
"""

from __future__ import annotations

import re
import shlex
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from records import RESULTS, Record, describe_column, find_published, format_accuracy, merge_records, read_records

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"(<!-- table: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
DEFAULT_COLUMNS = "label,ipc,accuracy,networks,condensing,note"


@dataclass
class TableSpec:
    """The options of a table: files, values of fields that records must have, and the layout."""

    files: list[str] = field(default_factory=list)
    filters: dict[str, list[str]] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    merge: list[str] = field(default_factory=list)  # fields of which records with equal values form one row
    pivot: str = ""  # field whose values are further columns
    extra: list[str] = field(default_factory=list)  # `mean` of the columns of the pivot, `paper`: published numbers
    layout: str = ""  # name of a function in LAYOUTS


def parse_spec(text: str) -> TableSpec:
    """Return the options in the comment of a table."""
    spec = TableSpec(columns=DEFAULT_COLUMNS.split(","))
    for word in shlex.split(text):
        key, separator, value = word.partition("=")
        if not separator:
            spec.files.append(word)
        elif key in ("columns", "merge", "extra"):
            setattr(spec, key, [item.strip() for item in value.split(",")])
        elif key in ("pivot", "layout"):
            setattr(spec, key, value)
        else:
            spec.filters[key] = value.split("|")
    return spec


def select_records(spec: TableSpec) -> list[Record]:
    """Return the records of the files that pass all filters, those of one row merged."""
    records = []
    for word in spec.files:
        pattern, _, methods = word.rstrip("]").partition("[")
        for path in sorted(RESULTS.glob(pattern)):
            rows = read_records(path.name)
            records += [record for record in rows if not methods or record["method"] in methods.split(",")]
    for key, values in spec.filters.items():
        name = key.removesuffix("!")
        records = [record for record in records if (str(record.get(name, "")) in values) == (name == key)]
    if not records:
        raise SystemExit(f"no record for the table {spec}")
    if not spec.merge:
        return records
    rows: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        rows.setdefault(tuple(str(record.get(key)) for key in spec.merge), []).append(record)
    return [merge_records(row) for row in rows.values()]


def make_table(text: str) -> str:
    """Return the Markdown table for the options in a comment."""
    spec = parse_spec(text)
    records = select_records(spec)
    if spec.layout:
        return format_table(LAYOUTS[spec.layout](records))
    columns = [describe_column(name) for name in spec.columns]
    if spec.pivot:
        return format_table(pivot_records(spec, records))
    rows = [[cell(record) for _, cell in columns] for record in records]
    return format_table([[header for header, _ in columns], *rows])


def pivot_records(spec: TableSpec, records: list[Record]) -> list[list[str]]:
    """Return rows of the columns, with one accuracy for each value of the pivot in place of the column `*`."""
    values = list(dict.fromkeys(str(record.get(spec.pivot, "")) for record in records))
    place = spec.columns.index("*")
    before = [describe_column(name) for name in spec.columns[:place]]
    after = [describe_column(name) for name in spec.columns[place + 1 :]]
    keys = [key for key in spec.merge if key != spec.pivot] or ["label"]
    rows: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        rows.setdefault(tuple(str(record.get(key)) for key in keys), {})[str(record.get(spec.pivot, ""))] = record
    extra = ["mean"] if "mean" in spec.extra else []
    table = [[*(header for header, _ in before), *values, *extra, *(header for header, _ in after)]]
    for cells in rows.values():
        last = list(cells.values())[-1]  # the largest size, if the pivot is the number of images per class
        accuracies = [format_cell(cells.get(value), "paper" in spec.extra) for value in values]
        mean = [f"{100 * statistics.fmean(record['accuracy_mean'] for record in cells.values()):.1f}"] * len(extra)
        table.append([*(cell(last) for _, cell in before), *accuracies, *mean, *(cell(last) for _, cell in after)])
    return table


def format_cell(record: Record | None, with_paper: bool) -> str:
    """Return an accuracy, and the published one after a slash."""
    if record is None:
        return ""
    published = find_published(record) if with_paper else ""
    return f"{format_accuracy(record)} / {published}" if published else format_accuracy(record)


def lay_out_continual(records: list[Record]) -> list[list[str]]:
    """Return accuracies after the last step and averaged over steps, by number of steps and method.

    ± is the standard deviation over the networks of all class orders in which every method finished all steps.
    """
    methods = list(dict.fromkeys(record["method"] for record in records))
    rows = [["steps", "accuracy, %", *(f"`{method}`" for method in methods)]]
    for steps in sorted({record["steps"] for record in records}):
        runs: dict[tuple[str, int], list[list[float]]] = {}  # accuracies of the networks after each step
        for record in (record for record in records if record["steps"] == steps):
            runs.setdefault((record["method"], record["order"]), []).append(record["accuracies"])
        orders = {order for _, order in runs if all(len(runs.get((method, order), [])) == steps for method in methods)}
        paper = [find_published({"experiment": "continual", "method": method, "steps": steps}) for method in methods]
        rows.append([str(steps), "after the last step, paper", *paper])
        last = [[accuracy for order in orders for accuracy in runs[method, order][-1]] for method in methods]
        means = [
            [statistics.fmean(network) for order in orders for network in zip(*runs[method, order], strict=True)]
            for method in methods
        ]
        rows.append([str(steps), "after the last step", *map(format_spread, last)])
        rows.append([str(steps), "average over steps", *map(format_spread, means)])
    return rows


def format_spread(accuracies: list[float]) -> str:
    """Return mean and standard deviation in %."""
    return format_accuracy(
        {"accuracy_mean": statistics.fmean(accuracies), "accuracy_std": statistics.pstdev(accuracies)}
    )


def lay_out_search(records: list[Record]) -> list[list[str]]:
    """Return accuracy, rank correlation, time and storage of architecture search, a column for each proxy."""
    about = ["≈ " if record.get("estimated") else "" for record in records]
    rows = [["", *(record["label"] for record in records)]]
    for title, measure in (
        ("best network, %", lambda record: f"{100 * record['accuracy']:.1f}"),
        ("rank correlation", lambda record: f"{record['correlation']:.2f}"),
        ("training, min", lambda record: f"{record['seconds'] / 60:.1f}"),
        ("condensing, min", lambda record: f"{record.get('condense_seconds', 0) / 60:.1f}"),
        ("images", lambda record: f"{record['images']:,}"),
    ):
        paper = [find_published({**record, "measure": title}) for record in records]
        if any(paper):
            rows.append([f"{title}, paper", *paper])
        exact = title in ("rank correlation", "condensing, min", "images")
        marks = [""] * len(records) if exact else about
        rows.append([title, *(mark + measure(record) for mark, record in zip(marks, records, strict=True))])
    return rows


def lay_out_headline(records: list[Record]) -> list[list[str]]:
    """Return the accuracies of the README: random images, learned images and the whole dataset of CIFAR-10."""
    rows = [["CIFAR-10, test accuracy of a ConvNet trained on", "accuracy"]]
    for record in records:
        accuracy = f"{100 * record['accuracy_mean']:.1f}%"
        protocol = ", modern protocol" if record.get("protocol") == "modern" else ""
        if record["method"] == "whole":
            rows.append(["all 50,000 images", accuracy])
        elif record["method"] == "random":
            rows.append([f"{10 * record['ipc']} random images", accuracy])
        else:
            name = f"**{10 * record['ipc']} images learned by condenset** (`{record['method']}`{protocol})"
            rows.append([name, f"**{accuracy}**"])
    return rows


LAYOUTS: dict[str, Callable[[list[Record]], list[list[str]]]] = {
    "continual": lay_out_continual,
    "headline": lay_out_headline,
    "search": lay_out_search,
}


def format_table(rows: list[list[str]]) -> str:
    """Return rows of cells as a Markdown table, without columns that are empty in all rows."""
    used = [index for index, header in enumerate(rows[0]) if index == 0 or any(row[index] for row in rows[1:])]
    lines = ["| " + " | ".join(row[index] for index in used) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(used), *lines[1:]])


def list_pages() -> list[Path]:
    """Return the pages whose tables are generated."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in pages if page != RESULTS / "README.md")]


def fill_tables(text: str) -> str:
    """Return the text of a page with its tables made from the records."""
    return TABLE.sub(lambda match: f"{match[1]}\n{make_table(match[2])}\n\n{match[4]}", text)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or compare them with `--check`."""
    outdated = []
    for page in list_pages():
        text = page.read_text(encoding="utf-8")
        filled = fill_tables(text)
        if filled != text:
            outdated.append(page.relative_to(ROOT).as_posix())
            if "--check" not in arguments:
                page.write_text(filled, encoding="utf-8")
    word = "outdated" if "--check" in arguments else "updated"
    print("\n".join(f"{word}: {page}" for page in outdated) or "no changes")
    return 1 if outdated and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
