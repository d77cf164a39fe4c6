"""Read the measured records in docs/results/*.json, and format their values for tables."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
PUBLISHED = "published.json"  # numbers of the paper and of other publications
Record = dict[str, Any]


def read_records(name: str) -> list[Record]:
    """Return the records of a file in docs/results/, with `label`, `norm`, `protocol` and `num_networks` filled in."""
    records: list[Record] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    for record in records:
        record.setdefault("label", f"`{record['method']}`" if "method" in record else "")
        record.setdefault("norm", find_norm(record.get("network", "")))
        record.setdefault("protocol", "paper")
        if record.get("method") == "whole":
            record["label"], record["ipc"] = "whole dataset", "all"
        if record.get("sets", 1) > 1 and record.get("condense_seconds"):
            record["condense_seconds"] /= record["sets"]  # recorded for all sets together
        if "accuracies" in record:
            record.setdefault("num_networks", len(record["accuracies"]))
    return records


def find_norm(network: str) -> str:
    """Return the norm in the spec of a network. The default is instance norm."""
    match = re.search(r"norm='(\w+)'", network)
    return match[1] if match else "instance"


def merge_records(records: list[Record]) -> Record:
    """Return one record for several sets with the same settings: the accuracies of all their networks."""
    if len(records) == 1:
        return records[0]
    accuracies = [accuracy for record in records for accuracy in record["accuracies"]]
    mean, std = statistics.fmean(accuracies), statistics.pstdev(accuracies)
    num_sets = sum(record.get("sets", 1) for record in records)
    merged = {"accuracies": accuracies, "accuracy_mean": mean, "accuracy_std": std, "sets": num_sets}
    return {**records[0], **merged, "num_networks": len(accuracies)}


def find_published(record: Mapping[str, Any]) -> str:
    """Return the published accuracy for the setting of a record, or an empty text."""
    setting = {"norm": "instance", "protocol": "paper", **record}
    for entry in json.loads((RESULTS / PUBLISHED).read_text(encoding="utf-8")):
        expected = {"norm": "instance", "protocol": "paper", **entry}
        if all(str(setting.get(key)) == str(expected[key]) for key in expected.keys() - {"accuracy", "source"}):
            return str(entry["accuracy"])
    return ""


def format_accuracy(record: Mapping[str, Any]) -> str:
    """Return the accuracy in %, as `63.3 ± 0.5`."""
    if record.get("accuracy_mean") is None:
        return str(record.get("accuracy", ""))
    mean = f"{100 * record['accuracy_mean']:.1f}"
    return f"{mean} ± {100 * record['accuracy_std']:.1f}" if record.get("accuracy_std") is not None else mean


def format_networks(record: Mapping[str, Any]) -> str:
    """Return the number of networks: of one set, or of each of several sets."""
    number, sets = record.get("num_networks"), record.get("sets", 1)
    return "" if number is None else f"{number // sets} × {sets} sets" if sets > 1 else str(number)


def format_seconds(seconds: float | None) -> str:
    """Return seconds, rounded, or minutes from 10 minutes on."""
    if seconds is None:
        return ""
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def format_condensing(record: Mapping[str, Any]) -> str:
    """Return time and memory of condensing, and the sizes that were learned together."""
    if record.get("method") in ("whole", "random") or record.get("condense_seconds") is None:
        return ""
    parts = [format_seconds(record["condense_seconds"])]
    if record.get("peak_memory_bytes"):
        parts.append(f"{record['peak_memory_bytes'] / 2**30:.1f} GiB")
    if record.get("together"):
        *sizes, last = map(str, record["together"])
        parts.append(f"for {', '.join(sizes)} and {last} together")
    return ", ".join(parts)


def format_relative(record: Mapping[str, Any]) -> str:
    """Return the accuracy in % of that of the whole dataset, measured with the paper's protocol."""
    whole = next(row for row in read_records(f"{record['dataset']}.json") if row["method"] == "whole")
    return f"{100 * record['accuracy_mean'] / whole['accuracy_mean']:.1f}"


def format_count(value: Any) -> str:
    """Return a number with separators of thousands; nothing for 0 or None."""
    return f"{value:,}" if value else ""


COLUMNS: dict[str, tuple[str, Callable[[Record], str]]] = {  # name: header, text of the cell
    "label": ("method", lambda record: record["label"]),
    "method": ("method", lambda record: f"`{record['method']}`"),
    "ipc": ("images per class", lambda record: str(record["ipc"])),
    "paper": ("paper", find_published),
    "published": ("published", find_published),
    "accuracy": ("accuracy, %", format_accuracy),
    "relative": ("% of whole", format_relative),
    "networks": ("networks", format_networks),
    "iterations": ("iterations", lambda record: format_count(record.get("iterations"))),
    "condensing": ("condensing", format_condensing),
    "pool": ("trained networks", lambda record: format_seconds(record.get("pool_seconds"))),
    "testing": ("testing", lambda record: format_seconds(record.get("evaluate_seconds", record.get("seconds")))),
    "seconds": ("seconds", lambda record: f"{record['condense_seconds']:.1f}"),
    "step": ("steps", lambda record: format_count(record["step"])),
    "spread": ("synthetic image to class centre", lambda record: f"{record['spread']:.2f}"),
    "reach": ("real image to nearest synthetic", lambda record: f"{record['reach']:.2f}"),
    "agreement": ("among their class, %", lambda record: f"{100 * record['agreement']:.1f}"),
    "note": ("remarks", lambda record: record.get("note", "")),
}


def describe_column(name: str) -> tuple[str, Callable[[Record], str]]:
    """Return header and formatter of a column. Unknown names are fields that are printed as they are."""
    field, _, header = name.partition(":")
    title, formatter = COLUMNS.get(field, (field.replace("_", " "), lambda record: str(record.get(field, ""))))
    return header.replace("_", " ") or title, formatter
