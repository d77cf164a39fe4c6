"""SetContent: what a file of any format contains, and its JSON metadata."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condenset.errors import UserError, check, format_error
from condenset.io.metadata import parse_json_object, read_json

SET_FILE, METADATA = "set.safetensors", "metadata.json"  # in a directory
MARK = "condenset"  # key of the metadata: version of the layout
VERSION = 1
RESERVED_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # of files on Windows
MAX_NAME_BYTES = 100  # of a file


@dataclass(frozen=True, kw_only=True)
class SetContent:
    """The content of a condensed set, with decoded images.

    Attributes:
        images: (N, C, H, W) float32 in pixel space, or normalised ones if `is_normalized`.
        labels: (N,) int64 class indices, or (N, K) float32 soft labels.
        class_names: K names. None: the file has none.
        mean, std: Normalisation constants per channel. None: the file has none.
        step_sizes: Learned step sizes, or None.
        provenance: How the set was made.
        is_normalized: Whether the images are normalised.
        is_whitened: Whether networks expect ZCA-whitened images.
    """

    images: NDArray[Any]
    labels: NDArray[Any]
    class_names: Sequence[str] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    step_sizes: Sequence[float] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    is_normalized: bool = False
    is_whitened: bool = False

    @property
    def hard_labels(self) -> NDArray[np.int64]:
        """One class per image; for soft labels, the most likely one."""
        return self.labels if self.labels.ndim == 1 else self.labels.argmax(1)

    @property
    def pixels_NHWC(self) -> NDArray[np.uint8]:
        """The images as pixels in 0..255, for image files."""
        pixels: NDArray[np.uint8] = (np.clip(self.images, 0, 1) * 255).round().astype(np.uint8)
        return pixels.transpose(0, 2, 3, 1)

    def to_json(self) -> str:
        """Return the metadata as JSON."""
        metadata = {
            MARK: VERSION,
            "class_names": self.class_names,
            "mean": self.mean,
            "std": self.std,
            "step_sizes": self.step_sizes,
            "provenance": dict(self.provenance),
        }
        return encode_metadata(metadata)


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Return the metadata of a set as JSON."""
    try:
        return json.dumps(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"the provenance of a set must be JSON, but {format_error(error)}") from None


def add_metadata(images: NDArray[Any], labels: NDArray[Any], metadata: Mapping[str, Any], **fields: Any) -> SetContent:
    """Return the content with the fields of the metadata that `SetContent.to_json` wrote."""
    names, steps, provenance = (metadata.get(name) for name in ("class_names", "step_sizes", "provenance"))
    check(isinstance(names, list | None), "class_names in the metadata must be a list", names)
    check(isinstance(steps, list | None), "step_sizes in the metadata must be a list", steps)
    check(isinstance(provenance, dict | None), "the provenance in the metadata must be an object", provenance)
    return SetContent(
        images=images,
        labels=labels,
        class_names=None if names is None else tuple(map(str, names)),
        mean=metadata.get("mean"),
        std=metadata.get("std"),
        step_sizes=steps,
        provenance=provenance or {},
        **fields,
    )


def parse_metadata(text: str, path: Path) -> dict[str, Any]:
    """Parse the metadata in a file."""
    metadata = parse_json_object(text, path, "a condensed set: its metadata are not JSON")
    version = metadata.get(MARK)
    if not isinstance(version, int):
        raise UserError(f"{path} has no metadata of condenset: export the set again")
    if version > VERSION:
        raise UserError(f"{path} was written by a newer version of condenset (format {version}): upgrade to read it")
    return metadata


def is_exported(directory: Path) -> bool:
    """Return whether condenset exported a directory, by the mark in its metadata.json."""
    try:
        return MARK in read_json(directory / METADATA, "metadata", is_valid=lambda value: isinstance(value, dict))
    except UserError:
        return False


def make_file_names(class_names: Sequence[str]) -> list[str]:
    """Return a different directory name for each class: its name, or its number if the name is not portable.

    Names that differ only in case become numbers too. A number that is the name of another class gets a prefix.
    """
    counts, digits = Counter(map(str.casefold, class_names)), len(str(len(class_names) - 1))
    names = []
    for number, name in enumerate(class_names):
        if not _is_portable(name) or counts[name.casefold()] > 1:
            name = f"{number:0{digits}}"
            while name in counts:
                name = f"_{name}"
        names.append(name)
    return names


def _is_portable(name: str) -> bool:
    """Return whether every common file system accepts a file name."""
    is_plain = re.fullmatch(r"\w[\w .()+,-]*", name) and not name.endswith((" ", "."))
    return bool(is_plain) and len(name.encode()) <= MAX_NAME_BYTES and not RESERVED_NAMES.match(name)
