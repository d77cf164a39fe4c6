"""Make, write, read and validate the records of results.json, one per job."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from condenset import __version__
from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.errors import UserError, is_int, is_number
from condenset.io.directories import wrap_os_errors
from condenset.io.files import CHECKSUM, json_hash, write_file
from condenset.io.metadata import read_json
from condenset.pipeline.plan import WHOLE
from condenset.runs.context import RunContext
from condenset.runs.events import is_fraction
from condenset.training.learned_steps import read_learned_lr
from condenset.training.protocol import Protocol
from condenset.training.scores import Scores

Record = dict[str, Any]

CLASS_FIELDS = ("class_names", "test_images", "per_class_accuracy")  # lists with one entry per class
RECORD_FIELDS = ("method", "ipc", "network", "condense_seconds")  # fields that every record needs
MAX_CONFUSION_CLASSES = 100  # of a confusion matrix in results.json, which has a number for each pair of classes
RESULTS_HINT = "delete it, and a resumed run writes it again"
SMALL_TYPES = (str, int, float, bool, type(None))  # of the recipe's fields in results.json
SCORE_FIELDS = ("accuracies", "accuracy_mean", "accuracy_std")  # fields that the record of a scored set needs


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A finished run or evaluation.

    Attributes:
        directory: The run directory, with results.json; that of a run also has the sets, figures and the report.
        records: The contents of results.json.
    """

    directory: Path
    records: list[Record]


def make_record(
    dataset: str,
    train_set: CondensedSet | ImageData,
    scores: Scores | None,
    run: RunContext,
    *,
    scored_on: str = "test",
) -> Record:
    """Return the record of a job.

    Args:
        dataset: Name or path of the dataset.
        train_set: The set, or the whole dataset.
        scores: Scores of the set. None: it was only condensed.
        run: The run.
        scored_on: The kind of images that the scores are from: "test", which records do not state, or "validation".
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
        **({"scored_on": scored_on} if scores and scored_on != "test" else {}),
        **(_score_fields(train_set, scores) if scores else {}),
        **_size_fields(train_set),
        **condense_cost({"peak_memory_bytes": run.compute.peak_memory(), **provenance}),
        **({"evaluate_seconds": round(scores.seconds, 3)} if scores else {}),
        "iterations": recipe.get("iterations", 0),
        "condense_lr": recipe.get("lr"),
        "recipe": _recipe_fields(recipe),
        "device": str(run.compute.device),
        "version": __version__,
        "settings": run.settings_hash,
        **(_class_fields(train_set.class_names, scores) if scores else {}),
    }


def _recipe_fields(recipe: Mapping[str, Any]) -> Record:
    """Return the settings of a set, except the images per class, which are a field of the record."""
    return {name: value for name, value in recipe.items() if name != "ipc" and isinstance(value, SMALL_TYPES)}


def _size_fields(train_set: CondensedSet | ImageData) -> Record:
    """Return the number of images that networks see, and the bytes of the stored images."""
    stored = train_set.images if isinstance(train_set, ImageData) else train_set.stored_images
    return {"images": len(train_set), "storage_bytes": stored.nbytes}


def _score_fields(train_set: CondensedSet | ImageData, scores: Scores) -> Record:
    """Return the accuracies and how the networks were trained: for epochs, steps, or the steps of the set."""
    protocol = scores.protocol
    names = ["learned_steps"] if protocol["learned_steps"] else []
    if not names or read_learned_lr(train_set) is not None:  # else the set has the length of the training
        names.append("steps" if protocol["steps"] else "epochs")
    return {
        "accuracy_mean": scores.mean,
        "accuracy_std": scores.std,
        "accuracies": list(scores.accuracies),
        "balanced_accuracy": scores.balanced_accuracy,
        "protocol": protocol["schedule"],
        **{name: protocol[name] for name in names},
        **({} if protocol["lr"] == Protocol.lr else {"evaluate_lr": protocol["lr"]}),
        "augment": protocol["augment"],
    }


def _class_fields(class_names: Sequence[str], scores: Scores) -> Record:
    """Return lists with one entry per class, and the confusion matrix unless there are many classes."""
    if scores.confusion is None:
        return {}
    has_matrix = len(class_names) <= MAX_CONFUSION_CLASSES
    return {
        "class_names": list(class_names),
        "test_images": list(scores.test_images),
        "per_class_accuracy": list(scores.per_class_accuracy),
        **({"confusion": scores.confusion.tolist()} if has_matrix else {}),
    }


def condense_cost(provenance: Mapping[str, Any]) -> Record:
    """Return the cost of condensing a set: seconds, memory, and the sizes learned `together` in that time.

    `pool_seconds` is the time that the networks of the method were trained before.
    """
    seconds, ipcs, memory = (provenance.get(name) for name in ("seconds", "together", "peak_memory_bytes"))
    pool = provenance.get("pool")
    pool_seconds = pool.get("seconds") if isinstance(pool, Mapping) else None
    return {
        "condense_seconds": seconds if is_number(seconds) else None,
        **({"pool_seconds": pool_seconds} if is_number(pool_seconds) else {}),
        **({"together": ipcs} if isinstance(ipcs, list) else {}),
        **({"peak_memory_bytes": memory} if isinstance(memory, int) else {}),
    }


def write_results(path: Path, records: list[Record]) -> None:
    """Write records to a JSON file, atomically. Each gets a checksum, which `read_results` verifies."""
    with wrap_os_errors(path):
        checked = [{**record, CHECKSUM: json_hash(record)} for record in records]
        write_file(path, format_records(checked).encode() + b"\n")


def format_records(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as JSON with one line per field."""
    objects = [",\n".join(f"  {json.dumps(name)}: {json.dumps(record[name])}" for name in record) for record in records]
    return "[\n" + ",\n".join(f" {{\n{fields}\n }}" for fields in objects) + "\n]" if records else "[]"


def read_results(directory: Path, settings_hash: str = "") -> list[Record]:
    """Read the records in the results.json of a run directory; return none if there is no such file.

    Raises:
        UserError: The file is damaged, or a record belongs to a run with other settings.
    """
    path = directory / "results.json"
    if not path.exists():
        return []
    records = read_record_file(path, RECORD_FIELDS)
    if any(record.get("settings", "") != settings_hash for record in records):
        raise UserError(f"{path} has results of a run with other settings; {RESULTS_HINT}")
    return records


def read_record_file(path: Path, required: Collection[str] = ()) -> list[Record]:
    """Read the records of a JSON file that `write_results` wrote, of a run with any settings.

    Raises:
        UserError: The file is damaged, or a record lacks a required field.
    """
    records: list[Record] = read_json(
        path,
        "a list of results",
        hint=RESULTS_HINT,
        is_valid=lambda value: isinstance(value, list) and all(is_record(record, required) for record in value),
    )
    if any(record.pop(CHECKSUM, None) != json_hash(record) for record in records):
        raise UserError(f"{path} is damaged: a record does not match its checksum; {RESULTS_HINT}")
    return records


def is_record(record: object, required: Collection[str]) -> TypeGuard[Record]:
    """Return whether this is a valid record with the required fields, and with all or none of the score fields."""
    if not isinstance(record, dict):
        return False
    names = {*required, *(SCORE_FIELDS if "accuracy_mean" in record else ())}
    if not names <= record.keys() or not all(_is_valid_field(name, value) for name, value in record.items()):
        return False
    return len({len(record.get(name, ())) for name in CLASS_FIELDS}) == 1


def _is_valid_field(name: str, value: object) -> bool:
    """Return whether a record's field can have this value."""
    match name:
        case "file" | "dataset":
            return isinstance(value, str)
        case "method" | "network":
            return isinstance(value, str | None)
        case "ipc":
            numbers = value if isinstance(value, list) else [value]
            return value is None or (bool(numbers) and all(map(is_int, numbers)))
        case "condense_seconds" | "pool_seconds" | "evaluate_seconds":
            return value is None or is_number(value)
        case "seconds":
            return is_number(value)
        case "images" | "storage_bytes":
            return value is None or is_int(value)
        case "accuracy_mean" | "accuracy_std":
            return is_fraction(value)
        case "balanced_accuracy":
            return value is None or is_fraction(value)
        case "class_names":
            return isinstance(value, list) and all(isinstance(item, str) for item in value)
        case "test_images":
            return isinstance(value, list) and all(map(is_int, value))
        case "per_class_accuracy":
            return isinstance(value, list) and all(item is None or is_fraction(item) for item in value)
        case "accuracies":
            return isinstance(value, list) and bool(value) and all(map(is_fraction, value))
        case "together":
            return isinstance(value, list)
        case "recipe":
            return isinstance(value, dict)
        case "scored_on":
            return value == "validation"
    return True
