"""CIFAR-10 and CIFAR-100: pickle files, read without running anything that they contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from condenset.data.datasets.cifar_pickle import ByteArray, parse_cifar_pickle
from condenset.data.datasets.sources import DatasetSource, Download
from condenset.data.reading.lazy import Labels, LazyDataset, Pixels, make_lazy_split
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError, format_error
from condenset.io.files import read_file

MAX_FILE_BYTES = 1 << 29  # the largest official file has 147 MiB


def read_cifar10(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read CIFAR-10: five training batches and one test batch."""
    names = _read_class_names(directory / "batches.meta", "label_names", 10)
    batches = [_read_batch(directory / f"data_batch_{number}", "labels", 10) for number in range(1, 6)]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    test = _read_batch(directory / "test_batch", "labels", 10)
    return LazyDataset(make_lazy_split(images, labels), make_lazy_split(*test), names, str(directory))


def read_cifar100(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read CIFAR-100 with its 100 fine labels."""
    names = _read_class_names(directory / "meta", "fine_label_names", 100)
    train, test = (_read_batch(directory / split, "fine_labels", 100) for split in ("train", "test"))
    return LazyDataset(make_lazy_split(*train), make_lazy_split(*test), names, str(directory))


def _read_class_names(path: Path, key: str, num_classes: int) -> tuple[str, ...]:
    names = read_cifar_pickle(path).get(key)
    if not isinstance(names, list) or len(names) != num_classes:
        raise UserError(f"{path} must have {num_classes} names under {key!r}")
    texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{path} must have names under {key!r}, but some are not text")
    return tuple(texts)


def _read_batch(path: Path, key: str, num_classes: int) -> tuple[Pixels, Labels]:
    content = read_cifar_pickle(path)
    data, labels = content.get("data"), content.get(key)
    if not isinstance(data, ByteArray) or data.pixels is None or data.pixels.ndim != 2 or data.pixels.shape[1] != 3072:
        raise UserError(f"{path} must have 'data' of shape (n, 3072), but got {_describe(data)}")
    images = data.pixels.reshape(-1, 3, 32, 32)
    if not isinstance(labels, list) or len(labels) != len(images):
        raise UserError(f"{path} must have a list of {len(images)} {key!r}, but got {_describe(labels)}")
    if not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise UserError(f"{path}: {key!r} must be whole numbers in 0..{num_classes - 1}")
    return images, np.array(labels, np.int64)


def _describe(value: object) -> str:
    if isinstance(value, ByteArray):
        return "an array without content" if value.pixels is None else f"shape {value.pixels.shape}"
    return f"{len(value)} items" if isinstance(value, list) else "nothing" if value is None else type(value).__name__


def read_cifar_pickle(path: Path) -> dict[str, Any]:
    """Return the dict in a CIFAR pickle, with keys as text and arrays as `ByteArray`."""
    stored = read_file(path, MAX_FILE_BYTES)
    try:
        content = parse_cifar_pickle(stored)
    except ValueError as error:
        raise UserError(f"{path} is not a valid CIFAR file: {format_error(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must contain a dict, but got {type(content).__name__}")
    return {key.decode("utf-8", "replace") if isinstance(key, bytes) else key: v for key, v in content.items()}


CIFAR10 = DatasetSource(
    name="cifar10",
    title="CIFAR-10 small photographs",
    num_classes=10,
    num_train=50_000,
    num_test=10_000,
    shape=(3, 32, 32),
    read=read_cifar10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2023, 0.1994, 0.2010),
    directories=("cifar-10-batches-py", ""),
    files=("batches.meta", *(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170_498_071,
            "cifar-10-python.tar.gz",
            "cifar-10-batches-py",
            190_000_000,
        ),
    ),
)
CIFAR100 = DatasetSource(
    name="cifar100",
    title="CIFAR-100 small photographs",
    num_classes=100,
    num_train=50_000,
    num_test=10_000,
    shape=(3, 32, 32),
    read=read_cifar100,
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    directories=("cifar-100-python", ""),
    files=("meta", "train", "test"),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
            "cifar-100-python.tar.gz",
            "cifar-100-python",
            190_000_000,
        ),
    ),
)
SOURCES = (CIFAR10, CIFAR100)
