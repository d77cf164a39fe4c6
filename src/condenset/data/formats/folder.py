"""Folder: PNG files by class for viewing, and exact values in images.npy and labels.npy."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condenset.data.formats.content import (
    METADATA,
    SetContent,
    add_metadata,
    make_file_names,
    read_directory_metadata,
)
from condenset.data.formats.png import encode_images
from condenset.data.npy_files import read_array
from condenset.io.files import open_file

IMAGES, LABELS = "images.npy", "labels.npy"


def write_folder(content: SetContent, directory: Path, *, verbose: bool) -> None:
    """Write `CLASS/00000.png`, images.npy, labels.npy and metadata.json to a new directory."""
    directory.mkdir()
    assert content.class_names is not None
    names, counts = make_file_names(content.class_names), Counter[int]()
    for name in names:
        (directory / name).mkdir()
    files = encode_images(content.pixels_NHWC, verbose=verbose)
    for label, file in zip(content.hard_labels.tolist(), files, strict=True):
        (directory / names[label] / f"{counts[label]:05}.png").write_bytes(file)
        counts[label] += 1
    np.save(directory / IMAGES, content.images)
    np.save(directory / LABELS, content.labels)
    (directory / METADATA).write_text(content.to_json("folder"), encoding="utf-8")


def read_folder(directory: Path) -> SetContent:
    """Read the exact values. The PNG files are not used."""
    metadata = read_directory_metadata(directory)
    return add_metadata(_read_npy(directory / IMAGES), _read_npy(directory / LABELS), metadata)


def _read_npy(path: Path) -> NDArray[Any]:
    with open_file(path) as file:
        return read_array(file, str(path), os.fstat(file.fileno()).st_size)
