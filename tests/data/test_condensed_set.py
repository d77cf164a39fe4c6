from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import condenset as cs
from helpers.reference_dm import tiny_data


def make_set(**fields: object) -> cs.CondensedSet:
    values: dict[str, object] = {
        "images": torch.rand(4, 3, 8, 8),
        "labels": torch.tensor([0, 0, 1, 1]),
        "class_names": ("cat", "dog"),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.25),
        "provenance": {"method": "dm", "recipe": {"ipc": 2}, "seed": 3},
        **fields,
    }
    return cs.CondensedSet(**values)  # type: ignore[arg-type]


def test_save_and_load(tmp_path: Path) -> None:
    condensed = make_set()
    condensed.save(tmp_path / "a.safetensors")
    back = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert torch.equal(back.images, condensed.images)
    assert torch.equal(back.labels, condensed.labels)
    assert (back.class_names, back.mean, back.std) == (condensed.class_names, condensed.mean, condensed.std)
    assert back.provenance == condensed.provenance
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    with pytest.raises(cs.UserError, match="exists already"):
        condensed.save(tmp_path / "a.safetensors")
    condensed.save(tmp_path / "a.safetensors", overwrite=True)


def test_paths_begin_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_set().save("~/a.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert len(cs.CondensedSet.load("~/a.safetensors")) == 4
    with pytest.raises(cs.UserError, match="exists already"):
        make_set().save("~/a.safetensors")


@pytest.mark.parametrize("name", ["x.npz", "x.pt", "x", "x.safetensors.gz"])
def test_other_suffixes_are_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(cs.UserError, match=r"must end in .safetensors, but got .*; for other formats use to_folder"):
        make_set().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_soft_labels_are_saved(tmp_path: Path) -> None:
    soft = torch.rand(4, 2)
    make_set(labels=soft).save(tmp_path / "soft.safetensors")
    assert torch.equal(cs.CondensedSet.load(tmp_path / "soft.safetensors").labels, soft)


def test_condensed_set_is_a_torch_dataset() -> None:
    condensed = make_set()
    assert len(condensed) == 4
    image, label = condensed[2]
    assert torch.equal(image, condensed.images[2])
    assert int(label) == 1
    batches = list(DataLoader(condensed, batch_size=3))
    assert [len(labels) for _, labels in batches] == [3, 1]
    mean, std = torch.tensor(condensed.mean)[:, None, None], torch.tensor(condensed.std)[:, None, None]
    torch.testing.assert_close(condensed.normalized(), (condensed.images - mean) / std)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": torch.rand(4, 3, 8, 8).double()}, "must be float32"),
        ({"images": torch.full((4, 3, 8, 8), float("nan"))}, "must be finite"),
        ({"images": torch.rand(4, 2, 8, 8)}, "1 or 3"),
        ({"images": torch.rand(0, 3, 8, 8), "labels": torch.zeros(0, dtype=torch.int64)}, "at least one image"),
        ({"labels": torch.tensor([0, 0, 1, 2])}, r"in 0\.\.1"),
        ({"labels": torch.tensor([0, 0, 1])}, "there must be 4 labels"),
        ({"labels": torch.rand(4, 3)}, "soft labels"),
        ({"labels": torch.full((4, 2), -1.0)}, "soft labels must be probabilities, not logits"),
        ({"labels": torch.tensor(0)}, "labels must have the shape"),
        ({"images": torch.rand(4, 3, 1, 64)}, "images must be square, but got '1x64'"),
        ({"std": (0.2, 0.0, 0.2)}, r"std must be a number above 0 for each channel \(3\)"),
        ({"mean": (float("nan"), 0.0, 0.2)}, r"mean must be a number for each channel \(3\)"),
        ({"mean": (0.1,)}, r"mean must be a number for each channel \(3\)"),
        ({"class_names": (), "labels": torch.zeros(4, dtype=torch.int64)}, "at least one class"),
        ({"images": torch.rand(4, 3, 0, 0)}, "at least one pixel"),
        ({"provenance": {"recipe": "text"}}, "the recipe in the provenance must be a mapping"),
    ],
)
def test_inconsistent_sets_are_rejected(fields: dict[str, object], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        make_set(**fields)


def write_damaged_set(path: Path, edit: str) -> None:
    """Write a .safetensors file with a wrong header."""
    make_set().save(path)
    blob = path.read_bytes()
    (length,) = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8 : 8 + length])
    if edit == "truncated":
        blob = blob[:-100]
    elif edit == "huge header":
        blob = struct.pack("<Q", 2**62) + blob[8:]
    elif edit == "empty":
        blob = b""
    else:
        if edit == "huge shape":
            header["images"]["shape"] = [2**40, 3, 8, 8]
        elif edit == "offsets beyond the end":
            header["images"]["data_offsets"] = [0, 2**40]
        elif edit == "no metadata":
            del header["__metadata__"]
        elif edit == "metadata is no JSON":
            header["__metadata__"]["condenset"] = "{"
        elif edit == "metadata of the wrong kind":
            header["__metadata__"]["condenset"] = json.dumps({"format": 1, "class_names": 7})
        elif edit == "a newer format":
            header["__metadata__"]["condenset"] = json.dumps({"format": 99})
        elif edit == "a mean that no float can hold":
            metadata = json.loads(header["__metadata__"]["condenset"])
            header["__metadata__"]["condenset"] = json.dumps({**metadata, "mean": [10**400] * 3})
        text = json.dumps(header).encode()
        blob = struct.pack("<Q", len(text)) + text + blob[8 + length :]
    path.write_bytes(blob)


EDITS = [
    "truncated",
    "huge header",
    "empty",
    "huge shape",
    "offsets beyond the end",
    "no metadata",
    "metadata is no JSON",
    "metadata of the wrong kind",
    "a newer format",
    "a mean that no float can hold",
]


@pytest.mark.parametrize("edit", EDITS)
def test_damaged_files_are_rejected_in_one_line(tmp_path: Path, edit: str) -> None:
    write_damaged_set(tmp_path / "set.safetensors", edit)
    with pytest.raises(cs.UserError) as caught:
        cs.CondensedSet.load(tmp_path / "set.safetensors")
    assert "set.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60)
@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_damaged_byte_is_an_error(tmp_path_factory: pytest.TempPathFactory, position: float, mask: int) -> None:
    path = tmp_path_factory.mktemp("damaged") / "set.safetensors"
    make_set().save(path)
    blob = bytearray(path.read_bytes())
    blob[int(position * len(blob))] ^= mask
    path.write_bytes(bytes(blob))
    with pytest.raises(cs.UserError, match=r"\A.*set\.safetensors.*\Z"):  # one line
        cs.CondensedSet.load(path)


def test_other_safetensors_files_are_rejected(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.rand(3)}, tmp_path / "model.safetensors")
    with pytest.raises(cs.UserError, match="not a file of condenset"):
        cs.CondensedSet.load(tmp_path / "model.safetensors")
    with pytest.raises(cs.UserError, match="no such file"):
        cs.CondensedSet.load(tmp_path / "none.safetensors")


def test_repr_is_one_line() -> None:
    data = tiny_data([1200, 3])
    assert repr(data) == "ImageData(tiny: 1,203 images of 3x8x8, 2 classes)"
    splits = cs.Splits(train=data, test=tiny_data([2, 2]))
    assert repr(splits) == "Splits(tiny: 1,203 train and 4 test images of 3x8x8, 2 classes)"
    assert repr(make_set()) == "CondensedSet(4 images of 3x8x8, 2 classes; dm, 2 per class)"
    condensed = cs.condense(data, "random", ipc=1, device="cpu")
    assert repr(condensed) == "CondensedSet(tiny: 2 images of 3x8x8, 2 classes; random, 1 per class)"
    assert repr(make_set(provenance={})) == "CondensedSet(4 images of 3x8x8, 2 classes)"
    assert "\n" not in repr(make_set(provenance={"dataset": "a\nb", "recipe": {"ipc": torch.zeros(3, 3)}}))


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", torch.zeros(1), {(1, 2): 3}])
def test_save_refuses_provenance_that_is_not_json(tmp_path: Path, value: object) -> None:
    with pytest.raises(cs.UserError, match=r"^the provenance of a set must be JSON, but "):
        make_set(provenance={"note": value}).save(tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
