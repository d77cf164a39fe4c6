"""Damaged and malicious sets are one-line errors, and run no code."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
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


def edit_metadata(path: Path, **fields: Any) -> None:
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps({**metadata, **fields}))


def replace_record(source: Path, target: Path, suffix: str, content: bytes, **options: Any) -> None:
    """Copy a zip archive with another content of one record."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for name in old.namelist():
            new.writestr(name, content if name.endswith(suffix) else old.read(name))


def write_tar(path: Path, **members: bytes | tarfile.TarInfo) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def sparse(name: str) -> tarfile.TarInfo:
    """Return a member of 4 KiB without content."""
    info = tarfile.TarInfo(name)
    info.type, info.pax_headers = tarfile.REGTYPE, {"GNU.sparse.map": "0,0", "GNU.sparse.size": "4096"}
    return info


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


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
@pytest.mark.parametrize("name", ["folder", "npz", "webdataset"])
def test_npy_arrays(kind: str, name: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path, content = export(make_set(), name, tmp_path), NPY_FILES[kind]
    if name == "folder":
        (path / "images.npy").write_bytes(content)
    elif name == "npz":
        replace_record(path, tmp_path / "bad.npz", "images.npy", content)
        path = tmp_path / "bad.npz"
    else:
        label = b'{"label": 0}'
        write_tar(path / "set-000000.tar", **{"00000000.npy": content, "00000000.json": label})
    with user_error(str(path)) if name != "folder" else user_error():
        cs.import_set(path)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    "members",
    [
        {"../00000000.npy": b""},
        {"/00000000.npy": b""},
        {"00000000.npy": link("00000000.npy")},
        {"00000000.json": b'{"label": 0}'},
        {"00000000.json": b"[" * 100_000, "00000000.npy": npy_header((1, 1, 1)) + b"0000"},
        {"00000000.json": b"1", "00000000.npy": npy_header((1, 1, 1)) + b"0000"},
    ],
    ids=["parent", "absolute", "link", "no image", "deep", "no object"],
)
def test_webdataset_shards(members: dict[str, Any], tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "webdataset", tmp_path)
    write_tar(path / "set-000000.tar", **members)
    with user_error(str(path)):
        cs.import_set(path)
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


def test_sparse_members_are_refused(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "webdataset", tmp_path)
    write_tar(path / "set-000000.tar", **{"00000000.npy": sparse("00000000.npy")})
    with user_error("members must be files such as 00000000.npy"):
        cs.import_set(path)


def test_damaged_shards(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "webdataset", tmp_path)
    shard = path / "set-000000.tar"
    shard.write_bytes(shard.read_bytes()[:3000])
    with user_error("set-000000.tar"):
        cs.import_set(path)
    shard.unlink()
    with user_error("must contain .tar shards"):
        cs.import_set(path)


def test_damaged_arrow_files(tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "hf", tmp_path)
    file = path / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    for damaged in (b"", b"hello", content[: len(content) // 2], content[:200] + b"\xff" * 200 + content[400:]):
        file.write_bytes(damaged)
        with user_error(str(path)):
            cs.import_set(path)
    file.write_bytes(content)
    edit_metadata(path, images=[2**30, 3, 8, 8])
    with user_error("must contain images of the shape"):
        cs.import_set(path)


@pytest.mark.parametrize("kind", ["text", "bool", "views", "runs", "no rows"])
def test_arrow_columns_that_are_not_numbers(kind: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path, numbers = export(make_set(), "hf", tmp_path), pyarrow.array([0.5] * 192, pyarrow.float32())
    columns = {
        "text": lambda: pyarrow.array(["a"] * 4),
        "bool": lambda: pyarrow.array([[True] * 192] * 4),
        "views": lambda: pyarrow.ListViewArray.from_arrays(
            pyarrow.array([0] * 4, pyarrow.int32()), pyarrow.array([192] * 4, pyarrow.int32()), numbers
        ),
        "runs": lambda: pyarrow.RunEndEncodedArray.from_arrays(pyarrow.array([4], pyarrow.int32()), numbers[:1]),
        "no rows": lambda: pyarrow.array([], pyarrow.list_(pyarrow.float32())),
    }
    column = columns[kind]()
    table = pyarrow.table({"pixels": column, "label": np.zeros(len(column), np.int64)})
    file = str(path / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(file, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with user_error(str(path)):
        cs.import_set(path)


def test_compressed_arrow_files_are_refused(tmp_path: Path, user_error: ExpectUserError) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = export(make_set(), "hf", tmp_path)
    file = path / "data-00000-of-00001.arrow"
    table = pyarrow.table({"pixels": np.zeros(1 << 20, np.float32), "label": np.zeros(1 << 20, np.int64)})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    assert file.stat().st_size < 1 << 16
    with user_error("must not be compressed"):
        cs.import_set(path)


@pytest.mark.parametrize("name", ["folder", "hf", "webdataset"])
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
        {"layout": "zip"},
        {"layout": ["folder"]},
    ],
    ids=repr,
)
def test_metadata(name: str, fields: dict[str, Any], tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), name, tmp_path)
    edit_metadata(path, **fields)
    with user_error():
        cs.import_set(path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"x": NaN'])
def test_metadata_that_are_not_json(text: str, tmp_path: Path, user_error: ExpectUserError) -> None:
    path = export(make_set(), "folder", tmp_path)
    (path / "metadata.json").write_text(text)
    with user_error(str(path)):
        cs.import_set(path)
