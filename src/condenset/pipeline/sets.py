"""Find and describe set files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.ipc import format_ipc
from condenset.errors import UserError, format_command, format_names, is_number, warn_user
from condenset.io.bytesize import format_bytes
from condenset.io.finished_set_files import find_finished_set
from condenset.io.metadata import holds_config
from condenset.pipeline.config import read_plan
from condenset.pipeline.results import read_record_file
from condenset.training.scores import format_accuracy

MAX_CLASS_NAMES = 5  # in set_summary
SUMMARY_FIELDS = ("dataset", "source", "method", "seed", "seconds", "hardware", "version")  # provenance in set_summary


def find_sets(path: Path) -> list[Path]:
    """Return the set files at a path.

    Args:
        path: A set file, the name of a finished set, a run directory (all its sets, in the order of the run) or a
            directory of set files (sorted by name).
    """
    if not path.is_dir():
        return [find_finished_set(path) or path]
    if (path / "experiment.toml").is_file():
        raise UserError(f"{path} is an experiment: its sets are in the directories of {path / 'parts'}")
    if (path / "evaluation.toml").is_file():
        raise UserError(f"{path} is an evaluation, which has no sets: give the sets that it scored")
    if holds_config(path):
        return _find_run_sets(path)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise UserError(f"{path} is neither a run nor a directory of set files (.safetensors)")
    return files


def _find_run_sets(directory: Path) -> list[Path]:
    """Return the sets of a run; warn if some are missing."""
    plan = read_plan(directory / "recipe.toml")
    paths = [plan.set_path(job, directory) for job in plan.condense_jobs]
    files = [path for path in paths if path.exists()]
    finish = f"finish it with '{format_command('resume', directory)}'"
    if not files:
        raise UserError(f"{directory} is an unfinished run without a set: {finish}")
    if len(files) < len(paths):
        counts = f"{len(files)} of {len(paths)} sets"
        warn_user(f"{directory} is an unfinished run with {counts}: {finish}")
    return files


def find_scores(condensed: CondensedSet, file: Path) -> str | None:
    """Return the accuracy of a set in the results of its run, as text; None if there is none."""
    directory = next((path for path in file.absolute().parents[:2] if holds_config(path)), None)
    if directory is None or not (directory / "results.json").is_file():
        return None
    provenance = condensed.provenance
    key = (provenance.get("method"), provenance.get("recipe", {}).get("ipc"), provenance.get("seed"))
    for record in read_record_file(directory / "results.json"):
        if "accuracy_mean" in record and tuple(record.get(name) for name in ("method", "ipc", "seed")) == key:
            kind = ", validation images" if record.get("scored_on") == "validation" else ""
            return f"{format_accuracy(record)} % ({len(record['accuracies'])} × {record.get('network')}{kind})"
    return None


def shortest_names(files: Sequence[Path]) -> list[str]:
    """Return for each file the shortest end of its path that no other file has."""
    parts = [file.absolute().parts for file in files]

    def shorten(own: tuple[str, ...]) -> str:
        others = [other for other in parts if other != own]
        lengths = range(1, len(own) + 1)
        length = next(num for num in lengths if all(other[-num:] != own[-num:] for other in others))
        return str(Path(*own[-length:]))

    return [shorten(own) for own in parts]


def set_metadata(condensed: CondensedSet) -> dict[str, Any]:
    """Return the properties of a set and its complete provenance, for JSON."""
    properties = {
        "images": len(condensed),
        "stored_images": len(condensed.stored_images),
        "partition": condensed.partition,
        "decoder": None if condensed.compact is None else condensed.decoder,
        "storage_bytes": condensed.storage_bytes,
        "decoded_bytes": condensed.images.nbytes,
        "shape": list(condensed.images.shape[1:]),
        "classes": condensed.num_classes,
        "class_names": list(condensed.class_names),
        "labels": _label_kind(condensed),
        "pixel_range": [float(condensed.images.min()), float(condensed.images.max())],
        "step_sizes": None if condensed.step_sizes is None else condensed.step_sizes.tolist(),
        "mean": list(condensed.mean),
        "std": list(condensed.std),
    }
    provenance = {name: value for name, value in condensed.provenance.items() if name not in properties}
    return {**properties, **provenance}


def set_summary(condensed: CondensedSet) -> dict[str, Any]:
    """Return the properties of a set and the main entries of its provenance, as text for a terminal."""
    images, provenance, step_sizes = condensed.images, condensed.provenance, condensed.step_sizes
    recipe = {
        name: format_ipc(value) if name == "ipc" else value for name, value in provenance.get("recipe", {}).items()
    }
    shape = "x".join(map(str, images.shape[1:]))
    layout = f"partition {condensed.partition}, {condensed.decoder}"
    stored = "" if condensed.compact is None else f", stored as {len(condensed.compact)} ({layout})"
    decoded = "" if condensed.compact is None else f", {format_bytes(images.nbytes)} decoded"
    summary = {
        "images": f"{len(condensed)} of {shape}{stored}, {condensed.num_classes} classes",
        "per class": _describe_counts(condensed),
        "classes": format_names(condensed.class_names, MAX_CLASS_NAMES),
        "storage": format_bytes(condensed.storage_bytes) + decoded,
        "labels": _label_kind(condensed),
        "pixels": f"{images.min():.3g} to {images.max():.3g} (0 to 1 nominal)",
    }
    if step_sizes is not None:
        summary["step sizes"] = f"{len(step_sizes)}, {step_sizes.min():.3g} to {step_sizes.max():.3g}"
    return {
        **summary,
        "mean": ", ".join(f"{value:.4g}" for value in condensed.mean),
        "std": ", ".join(f"{value:.4g}" for value in condensed.std),
        **{name: provenance[name] for name in SUMMARY_FIELDS if provenance.get(name, "") != ""},
        **_describe_networks(provenance.get("pool")),
        "recipe": ", ".join(f"{name}={value}" for name, value in recipe.items()),
    }


def _describe_networks(pool: object) -> dict[str, str]:
    """Return the time to train the networks of a set, if the file states it."""
    seconds = pool.get("seconds") if isinstance(pool, Mapping) else None
    return {"networks": f"trained in {seconds:.3g} s"} if is_number(seconds) else {}


def _describe_counts(condensed: CondensedSet) -> str:
    """Return the number of stored images per class; with soft labels, that of the recipe."""
    if condensed.labels.ndim == 1:
        return format_ipc(torch.bincount(condensed.stored_labels, minlength=condensed.num_classes).tolist())
    return format_ipc(condensed.provenance.get("recipe", {}).get("ipc", "-"))


def _label_kind(condensed: CondensedSet) -> str:
    return "hard" if condensed.labels.ndim == 1 else "soft"
