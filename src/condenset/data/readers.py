"""The small benchmark sets in their official formats: digits, idx files (MNIST, FashionMNIST), CIFAR's pickles."""

from __future__ import annotations

import functools
import gzip
import io
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from condenset.data.guards import guard, require_file
from condenset.data.raw import HELD_OUT, Labels, Pixels, Raw, array_part, hold_out
from condenset.errors import UserError, one_line

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

DEFLATE_MOST = 1032  # bytes that one compressed byte can stand for
READ_BYTES = 1 << 20
CIFAR_FILE_MOST = 1 << 29  # the largest official file has 147 MiB


def read_digits() -> Raw:
    """scikit-learn's digits: 1,797 grey images of 8x8, values 0..16 stretched to 0..255."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * 255 / 16).astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    train, test = hold_out(labels, DIGIT_NAMES, "digits")
    source = f"the digits of scikit-learn; {HELD_OUT}"
    return Raw(array_part(images, labels, train), array_part(images, labels, test), DIGIT_NAMES, source, can_flip=False)


def read_mnist(folder: Path, class_names: tuple[str, ...] = DIGIT_NAMES) -> Raw:
    """The four idx files of MNIST, or of a set laid out like it."""

    def pair(split: str) -> tuple[Pixels, Labels]:
        images = read_idx(_plain_or_gz(folder / f"{split}-images-idx3-ubyte"), dims=3)
        label_file = _plain_or_gz(folder / f"{split}-labels-idx1-ubyte")
        labels = read_idx(label_file, dims=1).astype(np.int64)
        if len(labels) != len(images):
            raise UserError(f"{label_file} must hold a label for each of {len(images)} images, but got {len(labels)}")
        return images[:, None], labels

    train, test = pair("train"), pair("t10k")
    return Raw(array_part(*train), array_part(*test), class_names, str(folder))


def _plain_or_gz(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return packed if packed.is_file() and not path.is_file() else path


def read_idx(path: Path, dims: int) -> Pixels:
    """The bytes of an idx file, plain or .gz, of `dims` dimensions; its header is not believed before it is checked."""
    held = require_file(path)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            return _read_idx(file, dims, held, packed)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None
    except ValueError as error:
        raise UserError(f"{path} is not the idx file it should be: {one_line(error)}") from None


def _read_idx(file: BinaryIO | gzip.GzipFile, dims: int, held: int, packed: bool) -> Pixels:
    header_bytes = 4 + 4 * dims
    header = file.read(header_bytes)
    if len(header) < header_bytes or header[:4] != bytes((0, 0, 8, dims)):
        raise ValueError(f"it must begin with 0000080{dims} and {dims} sizes, but begins with {header[:4].hex()!r}")
    shape = struct.unpack(f">{dims}I", header[4:])
    count = math.prod(shape)
    if (count > held * DEFLATE_MOST) if packed else (count != held - header_bytes):
        raise ValueError(f"its header promises {count} bytes of data, but the file has {held} bytes in all")
    data = np.empty(count, np.uint8)
    done = 0
    while done < count and (part := file.read(min(READ_BYTES, count - done))):
        data[done : done + len(part)] = np.frombuffer(part, np.uint8)
        done += len(part)
    if done < count or file.read(1):
        raise ValueError(
            f"its header promises {count} bytes of data, but it holds {'fewer' if done < count else 'more'}"
        )
    return data.reshape(shape)


def read_cifar10(folder: Path) -> Raw:
    """CIFAR-10 as python pickles: five training batches and one for the test."""
    names = _cifar_names(folder / "batches.meta", "label_names", 10)
    batches = [_cifar_batch(folder / f"data_batch_{i}", "labels", 10) for i in range(1, 6)]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    test = _cifar_batch(folder / "test_batch", "labels", 10)
    return Raw(array_part(images, labels), array_part(*test), names, str(folder))


def read_cifar100(folder: Path) -> Raw:
    """CIFAR-100 as python pickles, with its 100 fine labels."""
    names = _cifar_names(folder / "meta", "fine_label_names", 100)
    train, test = (_cifar_batch(folder / split, "fine_labels", 100) for split in ("train", "test"))
    return Raw(array_part(*train), array_part(*test), names, str(folder))


def _cifar_names(path: Path, key: str, num_classes: int) -> tuple[str, ...]:
    names = read_cifar_pickle(path).get(key)
    if not isinstance(names, list) or len(names) != num_classes:
        raise UserError(f"{path} must list {num_classes} names under {key!r}")
    texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{path} must list names under {key!r}, but some are not text")
    return tuple(texts)


def _cifar_batch(path: Path, key: str, num_classes: int) -> tuple[Pixels, Labels]:
    content = read_cifar_pickle(path)
    data, labels = content.get("data"), content.get(key)
    if not isinstance(data, _Array) or data.pixels is None or data.pixels.ndim != 2 or data.pixels.shape[1] != 3072:
        raise UserError(f"{path} must hold 'data' of shape (n, 3072), but got {_what(data)}")
    images = data.pixels.reshape(-1, 3, 32, 32)
    if not isinstance(labels, list) or len(labels) != len(images):
        raise UserError(f"{path} must hold a list of {len(images)} {key!r}, but got {_what(labels)}")
    if not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise UserError(f"{path}: {key!r} must be whole numbers in 0..{num_classes - 1}")
    return images, np.array(labels, np.int64)


def _what(value: object) -> str:
    if isinstance(value, _Array):
        return "an array without content" if value.pixels is None else f"shape {value.pixels.shape}"
    return f"{len(value)} items" if isinstance(value, list) else "nothing" if value is None else type(value).__name__


class _Array:
    """Stands in for numpy.ndarray: takes the state of a uint8 array and nothing else."""

    __slots__ = ("pixels",)

    def __init__(self, *ignored: object) -> None:
        self.pixels: Pixels | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        if not isinstance(dtype, _UInt8) or fortran is not False or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array must be of bytes in C order")
        if not all(type(n) is int and 0 <= n <= CIFAR_FILE_MOST for n in shape) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError(f"an array of shape {shape} does not fit its {len(data)} bytes")
        self.pixels = np.frombuffer(data, np.uint8).reshape(shape)


class _UInt8:
    """Stands in for numpy.dtype, of which only uint8 is admitted."""

    __slots__ = ()

    def __init__(self, code: object, *ignored: object) -> None:
        if code not in ("u1", b"u1", "|u1", b"|u1", "uint8"):
            raise pickle.UnpicklingError(f"arrays must be uint8, but one is {code!r}")

    def __setstate__(self, state: object) -> None:
        """Nothing to keep: a byte has no byte order."""


class _Name:
    """A name a pickle may call; it takes no state and has no attribute that a pickle could set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *args: object) -> object:
        return self._call(*args)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a function cannot be given state")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """What codecs.encode does in pickles that Python 3 wrote for Python 2."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("bytes must be written as latin1 text")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _UInt8,
    ("_codecs", "encode"): _encode,
    ("codecs", "encode"): _encode,
}


# The unpickler written in Python keeps its memo in a dict: the one in C lets a short file ask for gigabytes of memo.
class _CifarUnpickler(pickle._Unpickler):
    """Reads plain values and byte arrays; every name is refused but six, and those are stand-ins made here."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in an image set")
        return _Name(_ADMITTED[module, name])


def read_cifar_pickle(path: Path) -> dict[str, Any]:
    """The dict in one of CIFAR's pickles, keys as text, arrays as `_Array`; nothing from the file is run."""
    size = require_file(path)
    if size > CIFAR_FILE_MOST:
        raise UserError(f"{path} must have at most {CIFAR_FILE_MOST} bytes, but got {size}")
    with guard(f"cannot read {path}"):
        stream = io.BytesIO(path.read_bytes())
    try:
        content = _CifarUnpickler(stream, encoding="bytes").load()
    except Exception as error:  # a hostile pickle can make its reader raise anything
        raise UserError(f"{path} is not one of CIFAR's pickles: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a dict, but got {type(content).__name__}")
    texts = {key.decode("utf-8", "replace") if isinstance(key, bytes) else key: v for key, v in content.items()}
    return {key: value for key, value in texts.items() if isinstance(key, str)}


read_fashionmnist = functools.partial(read_mnist, class_names=FASHION_NAMES)
