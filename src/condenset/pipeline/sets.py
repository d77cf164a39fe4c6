"""Find, score and describe set files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import Splits
from condenset.data.split import is_subset_source
from condenset.errors import UserError, check
from condenset.pipeline.config import read_plan
from condenset.pipeline.results import Record, make_record
from condenset.runs.context import RunContext
from condenset.runs.directory import is_run_directory
from condenset.training.evaluation import protocol_for, score_set

SUMMARY_FIELDS = ("dataset", "source", "method", "seed", "seconds", "hardware", "version")  # provenance in set_summary


def find_sets(path: Path) -> list[Path]:
    """Return the set files at a path, sorted by name.

    Args:
        path: A set file, a run directory (for its condensed.safetensors) or a directory of set files.
    """
    if not path.is_dir():
        return [path]
    if (path / "condensed.safetensors").exists():
        return [path / "condensed.safetensors"]
    if (path / "experiment.toml").is_file():
        raise UserError(f"{path} is an experiment: its sets are in the directories of {path / 'parts'}")
    if is_run_directory(path):
        raise UserError(f"{path} is an unfinished run without a set: finish it with 'condenset resume {path}'")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise UserError(f"{path} is neither a run nor a directory of set files (.safetensors)")
    return files


def find_set(path: Path) -> tuple[CondensedSet, Path]:
    """Load the set at a path, which must be the only one; return it and its file."""
    files = find_sets(path)
    if len(files) > 1:
        raise UserError(f"{path} has {len(files)} set files: name one of them, such as {files[0]}")
    return CondensedSet.load(files[0]), files[0]


def evaluate_file(
    path: Path,
    run: RunContext,
    load: Callable[..., Splits],
    protocol_fields: dict[str, Any],
    load_options: Mapping[str, Any],
    seed: int | None = None,
) -> Record:
    """Score a set file on the test images of a dataset, and return a record as in results.json.

    Args:
        path: A set file, or a directory with one set.
        run: The run. Its seed is replaced.
        load: Loads a dataset: `(dataset, data_dir, size) -> Splits`.
        protocol_fields: Fields of the protocol that the user gave.
        load_options: The arguments of `load` that the user gave. The others come from the run directory or the
            provenance of the set.
        seed: Seed of the networks. None: that of the set, which repeats the score of its run.
    """
    condensed, file = find_set(path)
    set_seed = condensed.provenance.get("seed")
    run.seed = seed if seed is not None else set_seed if isinstance(set_seed, int) else 0
    dataset, splits = _load_source(condensed, file, load, load_options)
    protocol = protocol_for(condensed, splits.test, **protocol_fields)
    run.compute.reset_peak_memory()
    scores = score_set(condensed, splits.test, protocol, run, f"{file}: scoring")
    return make_record(dataset, condensed, scores, run)


def _load_source(
    condensed: CondensedSet, file: Path, load: Callable[..., Splits], load_options: Mapping[str, Any]
) -> tuple[str, Splits]:
    """Load the dataset to score a set on, and return its name too.

    Warn if the dataset of the set has other training images now.
    """
    if "dataset" in load_options:
        return load_options["dataset"], load(**load_options)
    arguments = {**_find_origin(condensed, file), **load_options}
    dataset = arguments["dataset"]
    is_named = isinstance(dataset, str) and dataset != ""
    check(is_named, f"{file} must name its dataset in its provenance; or give --dataset", dataset)
    try:
        splits = load(**arguments)
    except UserError as error:
        raise UserError(f"the provenance of {file} names the dataset {dataset}: {error}; or give --dataset") from None
    fingerprint = condensed.provenance.get("fingerprint")
    is_subset = is_subset_source(str(condensed.provenance.get("source")))
    if fingerprint and fingerprint != splits.train.fingerprint and not is_subset:
        warnings.warn(
            f"{file} was made from other training images than {dataset} has now: some of them may be among the test "
            "images now",
            stacklevel=3,
        )
    return dataset, splits


def _find_origin(condensed: CondensedSet, file: Path) -> dict[str, Any]:
    """Return the arguments that load a set's dataset: from the recipe of its run, else the name in its provenance."""
    for directory in (file.parent, file.parent.parent):
        if is_run_directory(directory):
            plan = read_plan(directory / "recipe.toml")
            if plan.fingerprint == condensed.provenance.get("fingerprint"):
                return {"dataset": plan.dataset, "data_dir": plan.data_dir, "size": plan.size}
    return {"dataset": condensed.provenance.get("dataset")}


def set_metadata(condensed: CondensedSet) -> dict[str, Any]:
    """Return the properties of a set and its complete provenance, for JSON."""
    properties = {
        "images": len(condensed),
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
    shape = "x".join(map(str, images.shape[1:]))
    summary = {
        "images": f"{len(condensed)} of {shape}, {condensed.num_classes} classes",
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
        "recipe": ", ".join(f"{name}={value}" for name, value in provenance.get("recipe", {}).items()),
    }


def _label_kind(condensed: CondensedSet) -> str:
    return "hard" if condensed.labels.ndim == 1 else "soft"
