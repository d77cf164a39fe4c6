"""Streamed images: the memory of the process stays small, whatever the size of the dataset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from condenset.data.imports.memmap import MEMMAP_FORMAT, METADATA_FILE

NUM_CLASSES, NUM_IMAGES, SIZE = 10, 8_000, 64
SCRIPT = """
import sys
from pathlib import Path
import condenset as cs
from condenset.data.imports.memmap import read_memmap

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))

data = read_memmap(Path(sys.argv[1])).train.data
fields = {"ipc": 1, "batch_size": 32, "memory_limit": "96MiB", "device": "cpu", "verbose": False}
cs.condense(data, "mmd", iterations=1, **fields)  # loads libraries
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
cs.condense(data, "mmd", iterations=40, **fields)
print(status("VmHWM") - before, status("RssFile"))
"""


def write_sparse_import(directory: Path) -> int:
    """Write an import of black images, which takes no space on disk, and return the bytes of its images."""
    shape = (NUM_CLASSES * NUM_IMAGES, 3, SIZE, SIZE)
    directory.mkdir()
    with (directory / "train-images.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + int(np.prod(shape)))
    np.save(directory / "train-labels.npy", np.repeat(np.arange(NUM_CLASSES), NUM_IMAGES))
    metadata = {
        "format": MEMMAP_FORMAT,
        "name": "sparse",
        "source": "",
        "class_names": [str(label) for label in range(NUM_CLASSES)],
        "mean": [0.5] * 3,
        "std": [0.25] * 3,
        "allow_hflip": True,
        "train": {"count": shape[0], "fingerprint": "0" * 16},
    }
    (directory / METADATA_FILE).write_text(json.dumps(metadata))
    return int(np.prod(shape))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory cannot be measured")
def test_a_streamed_gigabyte_takes_a_fraction_of_it_in_memory(tmp_path: Path) -> None:
    num_bytes = write_sparse_import(tmp_path / "sparse")
    assert num_bytes > 900 << 20
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "sparse")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    growth, file_bytes = map(int, result.stdout.split())
    assert growth < 350 << 20
    assert file_bytes < 500 << 20
