from __future__ import annotations

import hashlib
import os
import pickle
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from condenset.data import load
from condenset.data.datasets.cifar import read_cifar10, read_cifar_pickle
from helpers.data_files import (
    ExpectUserError,
    make_cifar_batch,
    write_cifar10,
    write_pickle,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*should have")  # the test files have few images


class limit_memory:
    """Fail if the block allocates more than a few megabytes."""

    def __enter__(self) -> None:
        tracemalloc.start()

    def __exit__(self, *error: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_cifar10_round_trip(tmp_path: Path, protocol: int) -> None:
    directory = tmp_path / "cifar-10-batches-py"
    write_cifar10(directory)
    for number in range(1, 6):
        write_pickle(directory / f"data_batch_{number}", make_cifar_batch(20, "labels", 10, number - 1), protocol)
    splits = load("cifar10", data_dir=tmp_path)
    assert splits.train.images.shape == (100, 3, 32, 32) and len(splits.test) == 20
    assert splits.train.class_names[3] == "name3" and splits.train.std == (0.2023, 0.1994, 0.2010)
    first = np.random.default_rng(0).integers(0, 256, (20, 3072), np.uint8)
    assert (splits.train.images[0].numpy().ravel() == first[0]).all()
    assert (splits.train.images[1].numpy().ravel() == first[10]).all()


def test_cifar100_round_trip(tmp_path: Path) -> None:
    directory = tmp_path / "cifar-100-python"
    write_pickle(directory / "meta", {"fine_label_names": [f"n{i}" for i in range(100)]})
    write_pickle(directory / "train", make_cifar_batch(200, "fine_labels", 100))
    write_pickle(directory / "test", make_cifar_batch(100, "fine_labels", 100))
    data = load("cifar100", data_dir=tmp_path).train
    assert data.class_counts == (2,) * 100 and data.class_names[99] == "n99"


def test_python_2_pickle_is_read(tmp_path: Path) -> None:
    # Python 2 wrote byte strings as SHORT_BINSTRING, and arrays through numpy.core.multiarray._reconstruct
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\n(X\x02\x00\x00\x00u1\x89\x88tR"
        b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00\x00"
        + bytes(3072)
        + b"tb"
    )
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels](K\x07eu.")
    content = read_cifar_pickle(path)
    assert content["data"].pixels.shape == (1, 3072) and content["labels"] == [7]


def test_official_class_names_are_read(tmp_path: Path) -> None:
    names = b"airplane automobile bird cat deer dog frog horse ship truck".split()
    texts = b"".join(b"U%c%bq%c" % (len(name), name, index) for index, name in enumerate(names, 5))
    head = b"\x80\x02}q\x01(U\x13num_cases_per_batchq\x02M\x10'U\x0blabel_namesq\x03]q\x04("
    content = head + texts + b"eU\x07num_visq\x0fM\x00\x0cu."
    assert hashlib.md5(content).hexdigest() == "5ff9c542aee3614f3951f8cda6e48888"  # of the official batches.meta
    (tmp_path / "batches.meta").write_bytes(content)
    assert read_cifar_pickle(tmp_path / "batches.meta")["label_names"] == names


class RunsCommand:
    """An object whose pickle runs a command if it is read by pickle.load."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {tempfile.gettempdir()}/condenset-was-here",)


def pickle_array(state: tuple[object, ...]) -> bytes:
    """Return a pickle of {'data': ndarray} with this state, in which 'DTYPE' means the uint8 dtype."""
    head = b"\x80\x02}X\x04\x00\x00\x00datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    parts = []
    for value in state:
        dtype = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1\x89\x88tR"
        parts.append(dtype if value == "DTYPE" else pickle.dumps(value, 3)[2:-1])
    return head + b"(" + b"".join(parts) + b"tbs."


INVALID_PICKLES = {
    "runs a command": (pickle.dumps({"data": RunsCommand()}), "system is not allowed"),
    "calls eval": (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "builtins.eval is not allowed"),
    "empty": (b"", "not a valid CIFAR file"),
    "cut": (pickle.dumps(make_cifar_batch(20, "labels", 10), 3)[:-500], "not a valid CIFAR file"),
    "noise": (bytes(range(256)), "not a valid CIFAR file"),
    "a list": (pickle.dumps([1, 2]), "must contain a dict"),
    "objects": (pickle.dumps({"data": np.array([RunsCommand()], object)}, 3), "is not uint8 but O8"),
    "floats": (pickle.dumps({"data": np.zeros((2, 3072))}, 3), "is not uint8"),
    "wrong width": (pickle.dumps({b"data": np.zeros((2, 3071), np.uint8)}, 3), "shape (2, 3071)"),
    "one dimension": (pickle.dumps({b"data": np.zeros(3072, np.uint8)}, 3), "shape (3072,)"),
    "no data": (pickle.dumps({b"labels": [1]}, 3), "got nothing"),
    "no labels": (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}, 3), "a list of 2 'labels'"),
    "huge shape": (pickle_array((1, (2**40, 3072), "DTYPE", False, b"x")), "the shape of an array does not fit"),
    "negative shape": (pickle_array((1, (-1, 3072), "DTYPE", False, b"x")), "the shape of an array does not fit"),
    "text for bytes": (pickle_array((1, (1, 3072), "DTYPE", False, "x" * 3072)), "bytes in C order"),
    "no dtype": (pickle_array((1, (1, 3072), None, False, bytes(3072))), "bytes in C order"),
    "no state": (pickle_array(())[:-5] + b"s.", "an array without content"),
    "incomplete state": (pickle_array(()), "not a valid CIFAR file"),
    "huge memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "a memo index must be at most"),
    "huge bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "not a valid CIFAR file"),
    "huge bytearray": (b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"x.", "not a valid CIFAR file"),
    "many opcodes": (b"\x80\x02" + b"(" * 5_000 + b".", "more than 5000 opcodes"),
    "deep key": (b"\x80\x02})" + b"\x85" * 2_000 + b"Ns.", "more than 1000 tuples"),
    "long name": (b"\x80\x04X\x50\xc3\x00\x00" + b"x" * 50_000 + b"\x8c\x01y\x93.", f"{'x' * 50}.y is not allowed"),
    "a missing value": (b"\x80\x02(K\x01(s.", "not a valid CIFAR file"),
    "an opcode of objects": (b"\x80\x02cnumpy\ndtype\n)\x81.", "the opcode NEWOBJ is not allowed"),
    "persistent": (b"Pabc\n.", "the opcode PERSID is not allowed"),
}


@pytest.mark.parametrize("kind", INVALID_PICKLES)
def test_invalid_pickle_is_rejected(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content, message = INVALID_PICKLES[kind]
    monkeypatch.setattr("condenset.data.datasets.cifar_pickle.MAX_OPCODES", 5_000)
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(content)
    with user_error(message), limit_memory():
        read_cifar10(tmp_path, None)
    assert not Path(tempfile.gettempdir(), "condenset-was-here").exists()


@pytest.mark.parametrize("labels", [[0] * 19, [10] * 20, [-1] * 20, [None] * 20, [True] * 20, "x" * 20])
def test_invalid_cifar_labels_are_rejected(tmp_path: Path, user_error: ExpectUserError, labels: object) -> None:
    write_cifar10(tmp_path)
    write_pickle(tmp_path / "test_batch", {**make_cifar_batch(20, "labels", 10), b"labels": labels})
    with user_error("'labels'"):
        read_cifar10(tmp_path, None)


def test_invalid_cifar_names_and_missing_files_are_rejected(tmp_path: Path, user_error: ExpectUserError) -> None:
    write_cifar10(tmp_path)
    for names in ([b"a"] * 9, [1] * 10, None):
        write_pickle(tmp_path / "batches.meta", {b"label_names": names})
        with user_error("batches.meta"):
            read_cifar10(tmp_path, None)
    (tmp_path / "batches.meta").unlink()
    with user_error("no such file"):
        read_cifar10(tmp_path, None)


def test_too_large_cifar_file_is_not_read(
    tmp_path: Path, user_error: ExpectUserError, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar10(tmp_path)
    size = (tmp_path / "batches.meta").stat().st_size
    monkeypatch.setattr("condenset.data.datasets.cifar.MAX_FILE_BYTES", size - 1)
    with user_error(f"batches.meta must have at most {size - 1} bytes, but got {size}"):
        read_cifar10(tmp_path, None)
