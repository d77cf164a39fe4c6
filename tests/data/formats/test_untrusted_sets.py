"""Damaged and malicious sets are one-line errors, and run no code."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import condenset as cs
from helpers.condensed_sets import export, make_set
from helpers.data_files import ExpectUserError


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def npy_header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def replace_record(source: Path, target: Path, suffix: str, content: bytes, **options: Any) -> None:
    """Copy a zip archive with another content of one record."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith(suffix) else old.read(name))


PT_FILES: dict[str, Callable[[Path], object]] = {
    "an object": lambda path: torch.save({"data": [[torch.rand(1, 1, 2, 2), Attack(path.parent / "attacked")]]}, path),
    "a plain pickle": lambda path: path.write_bytes(pickle.dumps(Attack(path.parent / "attacked"))),
    "an old format": lambda path: torch.save([torch.rand(1)], path, _use_new_zipfile_serialization=False),
    "text": lambda path: path.write_text("hello"),
    "empty": lambda path: path.write_bytes(b""),
    "a zip": lambda path: zipfile.ZipFile(path, "w").close(),
    "no data": lambda path: torch.save({"weights": torch.rand(2)}, path),
    "one tensor": lambda path: torch.save(torch.rand(2), path),
    "no labels": lambda path: torch.save([[torch.rand(1, 1, 2, 2), None]], path),
    "expanded": lambda path: torch.save([torch.zeros(1).expand(2**40, 1, 8, 8), torch.zeros(1)], path),
    "sparse": lambda path: torch.save([torch.rand(4, 4).to_sparse(), torch.zeros(1)], path),
    "whole numbers": lambda path: torch.save([torch.zeros(2, 1, 2, 2, dtype=torch.int64), torch.arange(2)], path),
    "float labels": lambda path: torch.save([torch.rand(2, 1, 2, 2), torch.rand(2)], path),
    "negative labels": lambda path: torch.save([torch.rand(2, 1, 2, 2), torch.tensor([0, -1])], path),
    "NaN": lambda path: torch.save([torch.full((2, 1, 2, 2), torch.nan), torch.arange(2)], path),
    "complex": lambda path: torch.save([torch.rand(1, 1, 2, 2, dtype=torch.cfloat).conj(), torch.arange(1)], path),
    "vectors": lambda path: torch.save([torch.rand(2, 4), torch.arange(2)], path),
    "huge labels": lambda path: torch.save([torch.rand(2, 1, 2, 2), torch.tensor([0, 1_000_000])], path),
    "no images": lambda path: torch.save([torch.rand(0, 1, 2, 2), torch.arange(0)], path),
}


@pytest.mark.parametrize("kind", PT_FILES)
def test_pt_files(kind: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "x.pt"
    PT_FILES[kind](path)
    with user_error(str(path)):
        cs.import_set(path, normalization="mnist")
    assert [item.name for item in tmp_path.iterdir()] == ["x.pt"]


def test_pt_files_with_other_records(tmp_path: Path, user_error: ExpectUserError) -> None:
    good, bad = export(make_set(), "pt", tmp_path), tmp_path / "bad.pt"
    replace_record(good, bad, "data.pkl", good.read_bytes(), compression=zipfile.ZIP_DEFLATED)
    with user_error("must not be compressed"):
        cs.import_set(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("../data.pkl", b"")
    with user_error("must have plain names"):
        cs.import_set(bad)
    with zipfile.ZipFile(good) as archive:
        program = archive.read("archive/data.pkl")
    replace_record(good, bad, "data.pkl", program.replace(struct.pack("<H", 768), struct.pack("<H", 65535)))
    with user_error("must be a complete file that contains only tensors"):
        cs.import_set(bad)
    bad.write_bytes(good.read_bytes()[:-300])
    with user_error("is not a .pt file"):
        cs.import_set(bad)


NPY_FILES = {
    "huge": npy_header((2**40, 3, 8, 8)),
    "negative": npy_header((-1, 3, 8, 8)),
    "objects": npy_header((1,), "|O") + pickle.dumps([Attack(Path("attacked"))]),
    "code": b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"__import__('os')".ljust(20),
    "text": npy_header((1,), "<U2") + "ab".encode("utf-32-le"),
    "empty": b"",
}


@pytest.mark.parametrize("kind", NPY_FILES)
def test_npy_arrays(kind: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = tmp_path / "bad.npz"
    replace_record(export(make_set(), "npz", tmp_path), path, "images.npy", NPY_FILES[kind])
    with user_error(str(path)):
        cs.import_set(path)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"class_names": "cat"},
        {"class_names": ["cat"]},
        {"mean": "x"},
        {"std": [0, 0, 0]},
        {"mean": [0.5]},
        {"step_sizes": ["x"]},
        {"step_sizes": [-1.0]},
        {"provenance": [1]},
        {"provenance": {"recipe": 1}},
        {"condenset": 99},
        {"condenset": "1"},
    ],
    ids=repr,
)
def test_metadata(fields: dict[str, Any], tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "npz", tmp_path)
    arrays = dict(np.load(path))
    arrays["metadata"] = np.array(json.dumps(json.loads(str(arrays["metadata"])) | fields))
    np.savez(path, **arrays)
    with user_error():
        cs.import_set(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"x": NaN'])
def test_metadata_that_are_not_json(text: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "npz", tmp_path)
    np.savez(path, **(dict(np.load(path)) | {"metadata": np.array(text)}))
    with user_error(str(path)):
        cs.import_set(path)


@pytest.mark.parametrize("name", ["folder", "hf", "webdataset"])
def test_exported_directories(name: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), name, tmp_path)
    file = path / "set.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with user_error(str(file)):
        cs.import_set(path)
    file.unlink()
    with user_error(f"{path} was exported by an older version: export the set again"):
        cs.import_set(path)
    (path / "metadata.json").unlink()
    with user_error(f"{path} is not an exported set: it has no set.safetensors"):
        cs.import_set(path)
