"""Write small files in the official formats of datasets."""

from __future__ import annotations

import dataclasses
import pickle
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from condenset.data import DATASETS

ExpectUserError = Callable[..., AbstractContextManager[None]]


def replace_dataset(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    """Replace fields of a registered dataset for the duration of a test."""
    monkeypatch.setitem(DATASETS._items, name, dataclasses.replace(DATASETS[name], **fields))


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(idx_bytes(array))


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(directory: Path, train: int = 40, test: int = 20, size: int = 28) -> None:
    for split, count in (("train", train), ("t10k", test)):
        random = np.random.default_rng(count)
        write_idx(directory / f"{split}-images-idx3-ubyte", random.integers(0, 256, (count, size, size)))
        write_idx(directory / f"{split}-labels-idx1-ubyte", np.arange(count) % 10)


def make_cifar_batch(count: int, key: str, classes: int, seed: int = 0) -> dict[bytes, object]:
    data = np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)
    return {b"data": data, key.encode(): [i % classes for i in range(count)], b"batch_label": b"x"}


def write_pickle(path: Path, content: object, protocol: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))


def write_cifar10(directory: Path, count: int = 20) -> None:
    write_pickle(directory / "batches.meta", {b"label_names": [f"name{i}".encode() for i in range(10)]})
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        write_pickle(directory / name, make_cifar_batch(count, "labels", 10, number))


def save_image(path: Path, size: tuple[int, int] = (8, 8), mode: str = "RGB", value: int = 0, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(value)
    pixels = random.integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path, **options)


def make_classes(root: Path, names: Sequence[str] = "ab", count: int = 5, seed: int = 0, **options: Any) -> None:
    for number, name in enumerate(names):
        for i in range(count):
            save_image(root / name / f"{i}.png", value=1000 * seed + 100 * number + i, **options)
