"""Make, write, read and validate the records of results.json, one per job."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from condenset import __version__
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import is_number
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_file
from condenset.io.metadata import read_json
from condenset.pipeline.plan import WHOLE
from condenset.runs.context import RunContext
from condenset.runs.events import is_fraction
from condenset.training.scores import Scores

Record = dict[str, Any]

RECORD_FIELDS = ("method", "ipc", "network", "condense_seconds")  # fields that every record needs
SCORE_FIELDS = ("accuracies", "accuracy_mean", "accuracy_std")  # fields that the record of a scored set needs


def make_record(dataset: str, train_set: CondensedSet | ImageData, scores: Scores | None, run: RunContext) -> Record:
    """Return the record of a job.

    Args:
        dataset: Name or path of the dataset.
        train_set: The set, or the whole dataset.
        scores: Scores of the set. None: it was only condensed.
        run: The run.
    """
    whole = {"method": WHOLE, "seconds": 0.0}
    provenance: Mapping[str, Any] = train_set.provenance if isinstance(train_set, CondensedSet) else whole
    recipe = provenance.get("recipe", {})
    return {
        "dataset": dataset,
        "method": provenance.get("method"),
        "ipc": recipe.get("ipc"),
        "seed": run.seed,
        "network": scores.protocol["network"] if scores else recipe.get("network"),
        **(_score_fields(scores) if scores else {}),
        **condense_cost({"peak_memory_bytes": run.compute.peak_memory(), **provenance}),
        **({"evaluate_seconds": round(scores.seconds, 3)} if scores else {}),
        "iterations": recipe.get("iterations", 0),
        "condense_lr": recipe.get("lr"),
        "device": str(run.compute.device),
        "version": __version__,
    }


def _score_fields(scores: Scores) -> Record:
    """Return the accuracies and how the networks were trained: for epochs, steps, or the steps of the set."""
    protocol = scores.protocol
    length = "learned_steps" if protocol["learned_steps"] else "steps" if protocol["steps"] else "epochs"
    return {
        "accuracy_mean": scores.mean,
        "accuracy_std": scores.std,
        "accuracies": list(scores.accuracies),
        length: protocol[length],
        "augment": protocol["augment"],
    }


def condense_cost(provenance: Mapping[str, Any]) -> Record:
    """Return the cost of condensing a set: seconds, memory, and the sizes learned `together` in that time."""
    seconds, ipcs, memory = (provenance.get(name) for name in ("seconds", "together", "peak_memory_bytes"))
    return {
        "condense_seconds": seconds if is_number(seconds) else None,
        **({"together": ipcs} if isinstance(ipcs, list) else {}),
        **({"peak_memory_bytes": memory} if isinstance(memory, int) else {}),
    }


def write_results(path: Path, records: list[Record]) -> None:
    """Write records to a JSON file, atomically."""
    with wrap_os_errors(path):
        write_file(path, json.dumps(records, indent=1).encode() + b"\n")


def read_results(directory: Path | None) -> list[Record]:
    """Read the records in the results.json of a run directory; return none if there is no such file."""
    path = directory / "results.json" if directory else None
    if path is None or not path.exists():
        return []
    records: list[Record] = read_json(
        path,
        "a list of results",
        hint="delete it, and a resumed run writes it again",
        is_valid=lambda value: isinstance(value, list) and all(is_record(record, RECORD_FIELDS) for record in value),
    )
    return records


def is_record(record: object, required: Collection[str]) -> TypeGuard[Record]:
    """Return whether this is a valid record with the required fields, and with all or none of the score fields."""
    if not isinstance(record, dict):
        return False
    names = {*required, *(SCORE_FIELDS if "accuracy_mean" in record else ())}
    return names <= record.keys() and all(_is_valid_field(name, value) for name, value in record.items())


def _is_valid_field(name: str, value: object) -> bool:
    """Return whether a record's field can have this value."""
    match name:
        case "method" | "network":
            return isinstance(value, str | None)
        case "ipc" | "condense_seconds" | "evaluate_seconds":
            return value is None or is_number(value)
        case "seconds":
            return is_number(value)
        case "accuracy_mean" | "accuracy_std":
            return is_fraction(value)
        case "accuracies":
            return isinstance(value, list) and bool(value) and all(map(is_fraction, value))
        case "together":
            return isinstance(value, list)
    return True
