"""Write, damage and compare the files of the attacks in chaos.py."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

VARYING_FIELDS = {"condense_seconds", "evaluate_seconds", "seconds", "peak_memory_bytes", "train_seconds", "checksum"}


def write_data(root: Path) -> None:
    """Write tiny datasets: an .npz file, and MNIST and CIFAR-10 in their official formats."""
    numbers, labels = np.random.default_rng(0), np.repeat(np.arange(3), 12)
    images = (numbers.integers(0, 90, (2, 36, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
    np.savez(root / "toy.npz", x_train=images[0], y_train=labels, x_test=images[1], y_test=labels)
    mnist, cifar = root / "data" / "MNIST", root / "data" / "cifar-10-batches-py"
    mnist.mkdir(parents=True)
    cifar.mkdir()
    shutil.copy(root / "toy.npz", root / "data")
    for split, count in (("train", 40), ("t10k", 20)):
        pixels = numbers.integers(0, 256, (count, 28, 28), np.uint8).tobytes()
        header = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28)
        (mnist / f"{split}-images-idx3-ubyte").write_bytes(header + pixels)
        digits = bytes(index % 10 for index in range(count))
        (mnist / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + digits)
    names = {b"label_names": [f"name{index}".encode() for index in range(10)]}
    (cifar / "batches.meta").write_bytes(pickle.dumps(names, 2))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        batch = {b"data": numbers.integers(0, 256, (20, 3072), np.uint8), b"labels": [i % 10 for i in range(20)]}
        (cifar / name).write_bytes(pickle.dumps(batch, 2))


def mutate(path: Path, choice: random.Random) -> None:
    """Change a file: flip bytes, cut it off, repeat or remove a part, or replace a part by random bytes."""
    content = bytearray(path.read_bytes())
    start, end = sorted(choice.randrange(len(content) + 1) for _ in range(2))
    match choice.randrange(5):
        case 0:
            for _ in range(choice.randint(1, 4)):
                content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        case 1:
            del content[start:]
        case 2:
            content[end:end] = content[start:end]
        case 3:
            del content[start:end]
        case 4:
            part = min(end, start + 64)
            content[start:part] = choice.randbytes(part - start)
    path.write_bytes(content)


def digest(directory: Path) -> dict[str, Any]:
    """Return what decides the results in a directory: tensors, arrays and records without durations."""
    contents: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.suffix == ".safetensors":
            tensors = safetensors.numpy.load_file(path)
            contents[name] = {key: (value.shape, value.tobytes()) for key, value in tensors.items()}
        elif path.name == "results.json":
            contents[name] = [
                {key: value for key, value in record.items() if key not in VARYING_FIELDS}
                for record in json.loads(path.read_text())
            ]
        elif path.suffix in (".npy", ".bin"):
            contents[name] = path.read_bytes()
    return contents
