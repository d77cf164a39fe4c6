"""WebDataset: tar shards whose samples have an image (.png), its exact values (.npy), a class (.cls) and .json."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from condenset.data.formats.content import METADATA, SetContent, add_metadata, read_directory_metadata
from condenset.data.formats.png import encode_images
from condenset.data.npy_files import read_array
from condenset.errors import UserError, check, format_error
from condenset.io.files import check_memory, open_file

SHARD_IMAGES = 1000
MAX_JSON_BYTES = 1 << 20
MEMBER_NAME = re.compile(r"([0-9]{8})\.(png|npy|cls|json)", re.ASCII)


def write_webdataset(content: SetContent, directory: Path, *, verbose: bool) -> None:
    """Write shards of 1000 samples, `set-000000.tar` and so on, and metadata.json to a new directory."""
    directory.mkdir()
    assert content.class_names is not None
    labels, is_soft = content.hard_labels, content.labels.ndim == 2
    files = encode_images(content.pixels_NHWC, verbose=verbose)
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
    (directory / METADATA).write_text(content.to_json("webdataset"), encoding="utf-8")


def _encode_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _add_file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file with constant owner and time, so that the same set gives the same bytes."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))


def read_webdataset(directory: Path) -> SetContent:
    """Read the exact values and the labels of all shards, in the order of the shards."""
    metadata = read_directory_metadata(directory)
    shards = sorted(directory.glob("*.tar"))
    check(bool(shards), f"{directory} must contain .tar shards", [])
    images, labels = [], []
    for path in shards:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            check_memory(path, size)
            try:
                for sample in _read_samples(file, size):
                    images.append(sample["npy"])
                    labels.append(sample["json"].get("soft_label", sample["json"]["label"]))
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
            except (OSError, EOFError, KeyError, AttributeError, ValueError, RecursionError, tarfile.TarError) as error:
                raise UserError(f"{path} is not a shard of a condensed set: {format_error(error)}") from None
    check(len({image.shape for image in images}) == 1, f"the images in {directory} must have one shape", len(images))
    try:
        label_array = np.array(labels)
    except ValueError:  # rows of different lengths
        raise UserError(f"the labels in {directory} must be numbers, or lists of one length") from None
    return add_metadata(np.stack(images), label_array, metadata)


def _read_samples(file: IO[bytes], file_bytes: int) -> list[dict[str, Any]]:
    """Return the values (.npy) and the fields (.json) of every sample. Nothing is written to the disk."""
    samples: dict[str, dict[str, Any]] = {}
    with tarfile.open(fileobj=file, mode="r:") as tar:
        for member in tar:
            match = MEMBER_NAME.fullmatch(member.name)
            is_file = member.isreg() and not member.issparse()  # a sparse file can be far larger than the shard
            check(match is not None and is_file, "members must be files such as 00000000.npy", member.name)
            check(member.size <= file_bytes, "members must not be larger than the file", member.size)
            assert match is not None
            source = tar.extractfile(member)
            assert source is not None
            key, kind = match.groups()
            sample = samples.setdefault(key, {})
            if kind == "npy":
                sample["npy"] = read_array(io.BytesIO(source.read(member.size)), member.name, member.size)
            elif kind == "json":
                check(member.size <= MAX_JSON_BYTES, "a .json member must have at most 1 MiB", member.size)
                sample["json"] = json.loads(source.read(member.size))
    return list(samples.values())
