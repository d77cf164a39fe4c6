"""NumPy: one .npz file with the arrays images, labels, class_names, mean and std."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from condenset.data.formats.content import SetContent, add_metadata, parse_metadata
from condenset.data.reading.npy_files import read_npz_arrays
from condenset.errors import UserError, check
from condenset.io.files import write_file


def write_npz(content: SetContent, path: Path) -> None:
    """Write the arrays, and all metadata as JSON text in the array `metadata`."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        images=content.images,
        labels=content.labels,
        class_names=np.array(content.class_names, dtype=np.str_),
        mean=np.array(content.mean),
        std=np.array(content.std),
        metadata=np.array(content.to_json()),
    )
    write_file(path, buffer.getvalue())


def read_npz(path: Path) -> SetContent:
    """Read images, labels and metadata. A file of another program has no metadata."""
    arrays = read_npz_arrays(path, ("images", "labels", "metadata"))
    if missing := [name for name in ("images", "labels") if name not in arrays]:
        raise UserError(f"{path} must contain the arrays images and labels, but lacks {' and '.join(missing)}")
    metadata = {}
    if "metadata" in arrays:
        text = arrays["metadata"]
        check(text.ndim == 0 and text.dtype.kind == "U", f"metadata in {path} must be text", str(text.dtype))
        metadata = parse_metadata(str(text), path)
    return add_metadata(arrays["images"], arrays["labels"], metadata)
