"""Datasets as memory-mapped imports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from condenset.data.image_data import ImageData
from condenset.data.imports.memmap import MEMMAP_FORMAT, METADATA_FILE, read_memmap
from helpers.reference_dm import tiny_data


def tiny_import(directory: Path, counts: list[int]) -> ImageData:
    """Write random images as an import, and return them memory-mapped."""
    write_import(tiny_data(counts), directory)
    mapped = read_memmap(directory).train.data
    assert mapped is not None
    return mapped


def write_import(data: ImageData, directory: Path) -> None:
    """Write training images as an import without test images."""
    order = data.labels.argsort(stable=True)
    directory.mkdir(parents=True)
    np.save(directory / "train-images.npy", data.images[order].numpy())
    np.save(directory / "train-labels.npy", data.labels[order].numpy())
    metadata = {
        "format": MEMMAP_FORMAT,
        "name": data.name,
        "source": data.source,
        "class_names": list(data.class_names),
        "mean": list(data.mean),
        "std": list(data.std),
        "allow_hflip": data.allow_hflip,
        "train": {"count": len(data), "fingerprint": data.fingerprint},
    }
    (directory / METADATA_FILE).write_text(json.dumps(metadata))


def truncate_images(directory: Path, num_bytes: int) -> None:
    """Remove the last bytes of the training images of an import."""
    path = directory / "train-images.npy"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - num_bytes)
