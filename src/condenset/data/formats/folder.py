"""Folder: PNG files by class for viewing, and exact values in images.npy and labels.npy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from condenset.data.formats.content import SetContent, make_file_names
from condenset.data.formats.png import encode_images


def write_folder(content: SetContent, directory: Path) -> None:
    """Write `CLASS/00000.png`, images.npy and labels.npy to a new directory."""
    directory.mkdir()
    assert content.class_names is not None
    names, counts = make_file_names(content.class_names), Counter[int]()
    for name in names:
        (directory / name).mkdir()
    files = encode_images(content.pixels_NHWC)
    for label, file in zip(content.hard_labels.tolist(), files, strict=True):
        (directory / names[label] / f"{counts[label]:05}.png").write_bytes(file)
        counts[label] += 1
    np.save(directory / "images.npy", content.images)
    np.save(directory / "labels.npy", content.labels)
