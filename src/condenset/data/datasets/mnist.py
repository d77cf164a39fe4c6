"""MNIST and Fashion-MNIST: idx files, plain or compressed."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from condenset.data.datasets.sources import DatasetSource, Download
from condenset.data.reading.lazy import Labels, LazyDataset, Pixels, make_lazy_split
from condenset.data.reading.options import LoadOptions
from condenset.errors import UserError, format_error
from condenset.io.files import open_file

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MAX_ARRAY_BYTES = 1 << 30  # of an idx file; the official ones have at most 45 MiB


def read_mnist(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read MNIST."""
    return _read_idx_dataset(directory, DIGIT_NAMES)


def read_fashionmnist(directory: Path, options: LoadOptions) -> LazyDataset:
    """Read Fashion-MNIST."""
    return _read_idx_dataset(directory, FASHION_NAMES)


def _read_idx_dataset(directory: Path, class_names: tuple[str, ...]) -> LazyDataset:
    train, test = (_read_idx_split(directory, prefix) for prefix in ("train", "t10k"))
    return LazyDataset(make_lazy_split(*train), make_lazy_split(*test), class_names, str(directory))


def _read_idx_split(directory: Path, prefix: str) -> tuple[Pixels, Labels]:
    images = read_idx(_plain_or_gz(directory / f"{prefix}-images-idx3-ubyte"), dims=3)
    label_file = _plain_or_gz(directory / f"{prefix}-labels-idx1-ubyte")
    labels = read_idx(label_file, dims=1).astype(np.int64)
    if len(labels) != len(images):
        raise UserError(f"{label_file} must have {len(images)} labels, one per image, but got {len(labels)}")
    return images[:, None], labels


def _plain_or_gz(path: Path) -> Path:
    compressed = path.with_name(path.name + ".gz")
    return compressed if compressed.is_file() and not path.is_file() else path


def read_idx(path: Path, dims: int) -> Pixels:
    """Return the array of an idx file of bytes, plain or .gz, with `dims` dimensions."""
    try:
        with open_file(path) as file:
            return _read_idx(gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file, dims)
    except UserError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {format_error(error)}") from None
    except ValueError as error:
        raise UserError(f"{path} is not a valid idx file: {format_error(error)}") from None


def _read_idx(file: BinaryIO | gzip.GzipFile, dims: int) -> Pixels:
    header_bytes = 4 + 4 * dims
    header = file.read(header_bytes)
    if len(header) < header_bytes or header[:4] != bytes((0, 0, 8, dims)):
        raise ValueError(f"it must begin with 0000080{dims} and {dims} sizes, but begins with {header[:4].hex()!r}")
    shape = struct.unpack(f">{dims}I", header[4:])
    count = math.prod(shape)
    if count > MAX_ARRAY_BYTES:
        raise ValueError(f"its header must declare at most {MAX_ARRAY_BYTES} bytes of data, but declares {count}")
    data = file.read(count + 1)
    if len(data) != count:
        number = "fewer" if len(data) < count else "more"
        raise ValueError(f"its header declares {count} bytes of data, but it has {number}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _idx_downloads(address: str, name: str, digests: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[Download, ...]:
    return tuple(
        Download(f"{address}{file}.gz", f"md5:{digest}", size, f"{name}/raw/{file}.gz")
        for file, digest, size in zip(IDX_FILES, digests, sizes, strict=True)
    )


MNIST = DatasetSource(
    name="mnist",
    title="MNIST handwritten digits",
    num_classes=10,
    num_train=60_000,
    num_test=10_000,
    shape=(1, 28, 28),
    read=read_mnist,
    mean=(0.1307,),
    std=(0.3081,),
    allow_hflip=False,
    directories=("MNIST/raw", "MNIST", ""),
    files=IDX_FILES,
    downloads=_idx_downloads(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "MNIST",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        (9_912_422, 28_881, 1_648_877, 4_542),
    ),
)
FASHIONMNIST = DatasetSource(
    name="fashionmnist",
    title="Fashion-MNIST articles of clothing",
    num_classes=10,
    num_train=60_000,
    num_test=10_000,
    shape=(1, 28, 28),
    read=read_fashionmnist,
    mean=(0.2861,),
    std=(0.3530,),
    directories=("FashionMNIST/raw", "FashionMNIST", ""),
    files=IDX_FILES,
    downloads=_idx_downloads(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "FashionMNIST",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        (26_421_880, 29_515, 4_422_102, 5_148),
    ),
)
SOURCES = (MNIST, FASHIONMNIST)
