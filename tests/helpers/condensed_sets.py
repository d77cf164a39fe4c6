"""Make small condensed sets."""

from __future__ import annotations

from pathlib import Path

import torch

import condenset as cs

FORMATS = {"folder": "out", "npz": "out.npz", "hf": "out", "webdataset": "out", "pt": "out.pt"}  # with a path


def make_set(**fields: object) -> cs.CondensedSet:
    """Return a set of four colour images in two classes, with other fields if given."""
    values: dict[str, object] = {
        "images": torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 1.4 - 0.2,
        "labels": torch.tensor([0, 0, 1, 1]),
        "class_names": ("cat", "dog"),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.25),
        "provenance": {"method": "dm", "recipe": {"ipc": 2}, "seed": 3, "dataset": "pets"},
        **fields,
    }
    return cs.CondensedSet(**values)  # type: ignore[arg-type]


def export(condensed: cs.CondensedSet, name: str, directory: Path, *, overwrite: bool = False) -> Path:
    """Export a set in a format and return the path."""
    path = directory / FORMATS[name]
    getattr(condensed, f"to_{name}")(path, overwrite=overwrite)
    return path
