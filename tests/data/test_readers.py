from __future__ import annotations

import gzip
import os
import pickle
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from data_files import Refused, cifar_batch, idx_bytes, write_cifar10, write_idx, write_mnist, write_pickle
from hypothesis import given, settings
from hypothesis import strategies as st

from condenset.data import load
from condenset.data.readers import read_cifar10, read_cifar_pickle, read_idx
from condenset.errors import UserError

IDX = "train-images-idx3-ubyte"


def test_digits_are_split_in_every_class_and_stretched_exactly() -> None:
    from sklearn.datasets import load_digits

    splits = load("digits")
    raw = load_digits()
    assert len(splits.train) + len(splits.test) == 1797
    assert splits.train.images.shape[1:] == (1, 8, 8) and not splits.train.can_flip
    for label, (train, test) in enumerate(zip(splits.train.class_counts, splits.test.class_counts, strict=True)):
        assert test == -(-(train + test) // 5) and train + test == (raw.target == label).sum()
    zeros = raw.images[raw.target == 0]
    wanted = [[round(float(v) * 255 / 16) for v in row] for row in zeros[0]]
    assert splits.test.images[0, 0].tolist() == wanted
    assert [splits.train.images.min(), splits.train.images.max()] == [0, 255]
    assert "every fifth" in splits.test.source


def test_mnist_is_read_plain_and_packed_in_class_order(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    plain = load("mnist", data_dir=tmp_path)
    for file in list(raw.iterdir()):
        (raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    packed = load("MNIST", data_dir=tmp_path)
    assert plain.train.fingerprint == packed.train.fingerprint
    pixels = np.random.default_rng(40).integers(0, 256, (40, 28, 28))
    assert (plain.train.images[:4, 0].numpy() == pixels[::10]).all()
    assert plain.train.labels.tolist() == sorted(list(range(10)) * 4)
    assert plain.train.mean == (0.1307,) and plain.train.std == (0.3081,) and not plain.train.can_flip


@pytest.mark.parametrize("place", ["FashionMNIST/raw", "FashionMNIST", "."])
def test_fashionmnist_is_found_in_each_place(tmp_path: Path, place: str) -> None:
    write_mnist(tmp_path / place)
    data = load("fashion-mnist", data_dir=tmp_path).train
    assert data.class_names[9] == "Ankle boot" and data.can_flip and data.name == "fashionmnist"


@settings(max_examples=40, deadline=None)
@given(shape=st.lists(st.integers(0, 7), min_size=1, max_size=3), packed=st.booleans(), seed=st.integers(0, 9))
def test_idx_round_trip(shape: list[int], packed: bool, seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("x.gz" if packed else "x")
        content = idx_bytes(array)
        path.write_bytes(gzip.compress(content) if packed else content)
        found = read_idx(path, len(shape))
        assert found.shape == array.shape and (found == array).all()
        path.write_bytes(gzip.compress(content[:-1]) if packed else content[:-1])
        with pytest.raises(UserError):
            read_idx(path, len(shape))


GOOD = idx_bytes(np.zeros((4, 3, 3), np.uint8))
HUGE = struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "begin with"),
        (GOOD[:10], "begin with"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "begin with"),
        (idx_bytes(np.zeros(4)), "begin with"),
        (GOOD[:-1], "promises 36 bytes"),
        (GOOD + b"x", "promises 36 bytes"),
        (HUGE + b"x" * 100, "promises"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_idx_is_refused(tmp_path: Path, refused: Refused, content: bytes, part: str, packed: bool) -> None:
    path = tmp_path / (IDX + ".gz" * packed)
    path.write_bytes(gzip.compress(content) if packed else content)
    with refused(part, str(path)), refused_memory():
        read_idx(path, 3)


class refused_memory:
    """Fails if the block allocates more than a few megabytes."""

    def __enter__(self) -> None:
        tracemalloc.start()

    def __exit__(self, *error: object) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20


def test_gzip_beyond_its_header_is_not_unpacked(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / f"{IDX}.gz"
    path.write_bytes(gzip.compress(GOOD + bytes(100 << 20), 1))
    with refused("it holds more"), refused_memory():
        read_idx(path, 3)


@pytest.mark.parametrize("damage", ["cut", "noise", "plain"])
def test_broken_gzip_is_refused(tmp_path: Path, refused: Refused, damage: str) -> None:
    random = np.random.default_rng(0).integers(0, 256, (20, 9, 9))
    content = gzip.compress(idx_bytes(random))
    noisy = content[:200] + bytes(200) + content[400:]
    path = tmp_path / f"{IDX}.gz"
    path.write_bytes({"cut": content[: len(content) // 2], "noise": noisy, "plain": GOOD}[damage])
    with refused("cannot be read"):
        read_idx(path, 3)


def test_mnist_with_wrong_labels_is_refused(tmp_path: Path, refused: Refused) -> None:
    raw = tmp_path / "MNIST" / "raw"
    write_mnist(raw)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(39) % 10)
    with refused("a label for each of 40 images"):
        load("mnist", data_dir=tmp_path)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(40) % 11)
    with refused("labels must lie in 0..9, but got 10"):
        load("mnist", data_dir=tmp_path)
    write_idx(raw / "train-labels-idx1-ubyte", np.arange(40) % 9)
    with refused("empty class: no image of '9'"):
        load("mnist", data_dir=tmp_path)
    write_mnist(raw, size=20)
    with refused("must be 1x28x28, but got 1x20x20"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_cifar10_round_trip(tmp_path: Path, protocol: int) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    for number in range(1, 6):
        write_pickle(folder / f"data_batch_{number}", cifar_batch(20, "labels", 10, number - 1), protocol)
    splits = load("cifar10", data_dir=tmp_path)
    assert splits.train.images.shape == (100, 3, 32, 32) and len(splits.test) == 20
    assert splits.train.class_names[3] == "name3" and splits.train.std == (0.2023, 0.1994, 0.2010)
    first = np.random.default_rng(0).integers(0, 256, (20, 3072), np.uint8)
    assert (splits.train.images[0].numpy().ravel() == first[0]).all()
    assert (splits.train.images[1].numpy().ravel() == first[10]).all()


def test_cifar100_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    write_pickle(folder / "meta", {"fine_label_names": [f"n{i}" for i in range(100)]})
    write_pickle(folder / "train", cifar_batch(200, "fine_labels", 100))
    write_pickle(folder / "test", cifar_batch(100, "fine_labels", 100))
    data = load("cifar100", data_dir=tmp_path).train
    assert data.class_counts == (2,) * 100 and data.class_names[99] == "n99"


def test_python_2_pickle_is_read(tmp_path: Path) -> None:
    # what Python 2 wrote: byte strings as SHORT_BINSTRING, the array through numpy.core.multiarray._reconstruct
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


class Runs:
    """A pickle that runs a command when read without care."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {tempfile.gettempdir()}/condenset-was-here",)


def _array_with(state: tuple[object, ...]) -> bytes:
    """A pickle of {'data': ndarray} whose state is this tuple, in which DTYPE stands for the uint8 dtype."""
    head = b"\x80\x02}X\x04\x00\x00\x00datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tC\x01btR"
    parts = []
    for value in state:
        dtype = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1\x89\x88tR"
        parts.append(dtype if value == "DTYPE" else pickle.dumps(value, 2)[2:-1])
    return head + b"(" + b"".join(parts) + b"tbs."


BAD_PICKLES = {
    "runs a command": (pickle.dumps({"data": Runs()}), "system has no place"),
    "calls eval": (b"cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "builtins.eval has no place"),
    "empty": (b"", "not one of"),
    "cut": (pickle.dumps(cifar_batch(20, "labels", 10), 2)[:-500], "not one of"),
    "noise": (bytes(range(256)), "not one of"),
    "a list": (pickle.dumps([1, 2]), "must hold a dict"),
    "objects": (pickle.dumps({"data": np.array([Runs()], object)}, 2), "must be uint8, but one is 'O8'"),
    "floats": (pickle.dumps({"data": np.zeros((2, 3072))}, 2), "must be uint8"),
    "wrong width": (pickle.dumps({b"data": np.zeros((2, 3071), np.uint8)}, 2), "shape (2, 3071)"),
    "one dimension": (pickle.dumps({b"data": np.zeros(3072, np.uint8)}, 2), "shape (3072,)"),
    "no data": (pickle.dumps({b"labels": [1]}, 2), "got nothing"),
    "no labels": (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8)}, 2), "a list of 2 'labels'"),
    "huge shape": (_array_with((1, (2**40, 3072), "DTYPE", False, "x")), "not one of"),
    "negative shape": (_array_with((1, (-1, 3072), "DTYPE", False, "x")), "not one of"),
    "text for bytes": (_array_with((1, (1, 3072), "DTYPE", False, "x" * 3072)), "bytes in C order"),
    "no dtype": (_array_with((1, (1, 3072), None, False, bytes(3072))), "bytes in C order"),
    "no state": (_array_with(())[:-3] + b"0s.", "an array without content"),
    "huge memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "got nothing"),
    "huge bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.", "not one of"),
    "state on a function": (b"\x80\x02cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.", "cannot be given state"),
    "persistent": (b"Pabc\n.", "not one of"),
    "deep": (b"\x80\x02" + b"(" * 5000 + b"t" * 5000 + b".", "must hold a dict"),
    "strange key": (pickle.dumps({10**5000: 1, ("x",): 2}, 2), "got nothing"),
}


@pytest.mark.parametrize("kind", BAD_PICKLES)
def test_bad_pickle_is_refused(tmp_path: Path, refused: Refused, kind: str) -> None:
    content, part = BAD_PICKLES[kind]
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2").write_bytes(content)
    with refused(part), refused_memory():
        read_cifar10(tmp_path)
    assert not Path(tempfile.gettempdir(), "condenset-was-here").exists()


@pytest.mark.parametrize("labels", [[0] * 19, [10] * 20, [-1] * 20, [0.5] * 20, [True] * 20, "x" * 20])
def test_bad_cifar_labels_are_refused(tmp_path: Path, refused: Refused, labels: object) -> None:
    write_cifar10(tmp_path)
    write_pickle(tmp_path / "test_batch", {**cifar_batch(20, "labels", 10), b"labels": labels})
    with refused("'labels'"):
        read_cifar10(tmp_path)


def test_bad_cifar_names_and_missing_files_are_refused(tmp_path: Path, refused: Refused) -> None:
    write_cifar10(tmp_path)
    for names in ([b"a"] * 9, [1] * 10, None):
        write_pickle(tmp_path / "batches.meta", {b"label_names": names})
        with refused("batches.meta"):
            read_cifar10(tmp_path)
    (tmp_path / "batches.meta").unlink()
    with refused("no such file"):
        read_cifar10(tmp_path)
