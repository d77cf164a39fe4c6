"""Contents of reports, without a run."""

from __future__ import annotations

from typing import Any

import torch

from condenset.data.condensed_set import CondensedSet
from condenset.data.image_data import ImageData
from condenset.report.html import FeatureNetwork, ReportContent, ReportedSet
from condenset.runs.snapshots import Snapshot, choose_images, to_pixels

SCRIPT = "<script>alert(1)</script>"
CLASS_NAMES = ("cat", "dog", SCRIPT)


def make_data(num: int = 8, size: int = 8, channels: int = 3, class_names: tuple[str, ...] = CLASS_NAMES) -> ImageData:
    """Return random images, `num` per class."""
    generator = torch.Generator().manual_seed(0)
    shape = (num * len(class_names), channels, size, size)
    return ImageData(
        images=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        labels=torch.arange(len(class_names)).repeat_interleave(num),
        class_names=class_names,
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        name="pets",
    )


def make_set(data: ImageData, method: str = "dm", ipc: int = 2) -> CondensedSet:
    """Return a set of random images."""
    generator = torch.Generator().manual_seed(ipc)
    shape = (ipc * data.num_classes, *data.images.shape[1:])
    return CondensedSet(
        images=torch.rand(shape, generator=generator),
        labels=torch.arange(data.num_classes).repeat_interleave(ipc),
        class_names=data.class_names,
        mean=data.mean,
        std=data.std,
        provenance={"method": method, "recipe": {"ipc": ipc}, "dataset": data.name, "fingerprint": data.fingerprint},
    )


def make_reported_set(data: ImageData, method: str = "dm", ipc: int = 2, num_snapshots: int = 3) -> ReportedSet:
    """Return a set with snapshots of random images."""
    condensed = make_set(data, method, ipc)
    indices = choose_images(condensed)
    snapshots = [
        Snapshot(10 * number, 0.5 * number, to_pixels(torch.rand(condensed.images[indices].shape)), indices)
        for number in range(num_snapshots)
    ]
    label, file = f"{method}, {ipc} per class", f"sets/{method}-{ipc}.safetensors"
    return ReportedSet(label=label, condensed=condensed, snapshots=snapshots, checksum="ab" * 32, file=file)


def make_record(
    label: str, method: str, ipc: int | None, accuracy: float, images: int, **fields: Any
) -> dict[str, Any]:
    """Return a record of a scored set of three classes."""
    return {
        "label": label,
        "method": method,
        "ipc": ipc,
        "network": "ConvNet",
        "images": images,
        "storage_bytes": 1000 * images,
        "accuracies": [accuracy, accuracy],
        "accuracy_mean": accuracy,
        "accuracy_std": 0.004,
        "balanced_accuracy": accuracy,
        "condense_seconds": 0.0,
        "evaluate_seconds": 3.0,
        "class_names": list(CLASS_NAMES),
        "test_images": [10, 10, 10],
        "per_class_accuracy": [accuracy, 1.0, 0.5],
        "confusion": [[18, 1, 1], [0, 20, 0], [5, 5, 10]],
        **fields,
    }


def make_content(**fields: Any) -> ReportContent:
    """Return the contents of a report about `random`, `dm` and the whole dataset."""
    data = make_data()
    steps = [{"label": "dm, 2 per class", "step": step, "seconds": step / 10, "loss": 9.0 - step} for step in range(8)]
    defaults: dict[str, Any] = {
        "title": "pets, condensed",
        "records": [
            make_record("random, 2 per class", "random", 2, 0.5, 6),
            make_record("dm, 2 per class", "dm", 2, 0.633, 6, condense_seconds=27.2),
            make_record("whole dataset", "whole", None, 0.865, 24),
        ],
        "sets": [make_reported_set(data, "random", 2, 0), make_reported_set(data, "dm", 2)],
        "steps": steps,
        "train": data,
        "features": FeatureNetwork(embed=lambda images: images.flatten(1), description="no network"),
        "settings": {"command": "condenset run --config recipe.toml", "seed": "0"},
        "recipes": {"recipe.toml": f"dataset = '{SCRIPT}'"},
    }
    return ReportContent(**defaults | fields)
