"""WebDataset: tar shards whose samples have an image (.png), its exact values (.npy), a class (.cls) and .json."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condenset.data.formats.content import SetContent
from condenset.data.formats.png import encode_images

SHARD_IMAGES = 1000


def write_webdataset(content: SetContent, directory: Path) -> None:
    """Write shards of 1000 samples, `set-000000.tar` and so on, to a new directory."""
    directory.mkdir()
    assert content.class_names is not None
    labels, is_soft = content.hard_labels, content.labels.ndim == 2
    files = encode_images(content.pixels_NHWC)
    for number, start in enumerate(range(0, len(labels), SHARD_IMAGES)):
        with tarfile.open(directory / f"set-{number:06}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for row in range(start, min(start + SHARD_IMAGES, len(labels))):
                label = int(labels[row])
                fields: dict[str, Any] = {"label": label, "class_name": content.class_names[label]}
                fields |= {"soft_label": content.labels[row].tolist()} if is_soft else {}
                _add_file(tar, f"{row:08}.png", next(files))
                _add_file(tar, f"{row:08}.npy", _encode_npy(content.images[row]))
                _add_file(tar, f"{row:08}.cls", str(label).encode())
                _add_file(tar, f"{row:08}.json", json.dumps(fields).encode())
    files.close()


def _encode_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file with constant owner and time, so that the same set gives the same bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))
