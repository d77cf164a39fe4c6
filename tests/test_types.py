"""What flows between the rooms, and the one file format that leaves them."""

from __future__ import annotations

import dataclasses
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
from condenset.files import write_file
from condenset.types import of_classes, percent
from plain import tiny_data


def small_set(**fields: object) -> cs.CondensedSet:
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
    small = small_set()
    small.save(tmp_path / "a.safetensors")
    back = cs.CondensedSet.load(tmp_path / "a.safetensors")
    assert torch.equal(back.images, small.images)
    assert torch.equal(back.labels, small.labels)
    assert (back.class_names, back.mean, back.std) == (small.class_names, small.mean, small.std)
    assert back.provenance == small.provenance
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    with pytest.raises(cs.UserError, match="exists already"):
        small.save(tmp_path / "a.safetensors")
    small.save(tmp_path / "a.safetensors", overwrite=True)


def test_soft_labels_survive(tmp_path: Path) -> None:
    soft = torch.rand(4, 2)
    small_set(labels=soft).save(tmp_path / "soft.safetensors")
    assert torch.equal(cs.CondensedSet.load(tmp_path / "soft.safetensors").labels, soft)


def test_it_is_a_dataset() -> None:
    small = small_set()
    assert len(small) == 4
    image, label = small[2]
    assert torch.equal(image, small.images[2])
    assert int(label) == 1
    batches = list(DataLoader(small, batch_size=3))
    assert [len(labels) for _, labels in batches] == [3, 1]
    mean, std = torch.tensor(small.mean)[:, None, None], torch.tensor(small.std)[:, None, None]
    torch.testing.assert_close(small.normalised(), (small.images - mean) / std)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": torch.rand(4, 3, 8, 8).double()}, "must be float32"),
        ({"images": torch.full((4, 3, 8, 8), float("nan"))}, "must be finite"),
        ({"images": torch.rand(4, 2, 8, 8)}, "1 or 3"),
        ({"images": torch.rand(0, 3, 8, 8), "labels": torch.zeros(0, dtype=torch.int64)}, "at least one image"),
        ({"labels": torch.tensor([0, 0, 1, 2])}, r"in 0\.\.1"),
        ({"labels": torch.tensor([0, 0, 1])}, "must number 4"),
        ({"labels": torch.rand(4, 3)}, "soft labels"),
        ({"images": torch.rand(4, 3, 1, 64)}, "images must be square, but got '1x64'"),
        ({"std": (0.2, 0.0, 0.2)}, r"std must be a number above 0 for each channel \(3\)"),
        ({"mean": (float("nan"), 0.0, 0.2)}, r"mean must be a number for each channel \(3\)"),
        ({"mean": (0.1,)}, r"mean must be a number for each channel \(3\)"),
        ({"class_names": (), "labels": torch.zeros(4, dtype=torch.int64)}, "at least one class"),
        ({"images": torch.rand(4, 3, 0, 0)}, "at least a pixel"),
        ({"provenance": {"recipe": "text"}}, "a recipe must be a table"),
    ],
)
def test_inconsistent_sets_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(cs.UserError, match=message):
        small_set(**fields)


def lying(path: Path, edit: str) -> None:
    """A .safetensors file whose header does not tell the truth."""
    small_set().save(path)
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
            meta = json.loads(header["__metadata__"]["condenset"])
            header["__metadata__"]["condenset"] = json.dumps({**meta, "mean": [10**400] * 3})
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
def test_files_that_lie_are_refused_in_one_line(tmp_path: Path, edit: str) -> None:
    lying(tmp_path / "set.safetensors", edit)
    with pytest.raises(cs.UserError) as caught:
        cs.CondensedSet.load(tmp_path / "set.safetensors")
    assert "set.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_a_damaged_byte_is_either_refused_or_harmless(tmp_path_factory, place: int, value: int) -> None:
    path = tmp_path_factory.mktemp("damaged") / "set.safetensors"
    small_set().save(path)
    blob = bytearray(path.read_bytes())
    blob[place] = value
    path.write_bytes(bytes(blob))
    try:
        back = cs.CondensedSet.load(path)
    except cs.UserError as error:
        assert "\n" not in str(error)
    else:
        assert back.images.isfinite().all()


def test_other_safetensors_files_are_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.rand(3)}, tmp_path / "model.safetensors")
    with pytest.raises(cs.UserError, match="not a set of condenset"):
        cs.CondensedSet.load(tmp_path / "model.safetensors")
    with pytest.raises(cs.UserError, match="no such file"):
        cs.CondensedSet.load(tmp_path / "none.safetensors")


def test_write_file_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(tmp_path / "a", b"one")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode  # others may read it, as any file
    (tmp_path / "b").unlink()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("condenset.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_printed_of_data_is_a_line() -> None:
    data = tiny_data([1200, 3])
    assert repr(data) == "ImageData(tiny: 1,203 images of 3x8x8, 2 classes)"
    splits = cs.Splits(train=data, test=tiny_data([2, 2]))
    assert repr(splits) == "Splits(tiny: 1,203 train and 4 test images of 3x8x8, 2 classes)"
    assert repr(small_set()) == "CondensedSet(4 images of 3x8x8, 2 classes; dm, 2 a class)"
    made = cs.condense(data, "random", ipc=1, device="cpu")
    assert repr(made) == "CondensedSet(tiny: 2 images of 3x8x8, 2 classes; random, 1 a class)"
    assert repr(small_set(provenance={})) == "CondensedSet(4 images of 3x8x8, 2 classes)"
    assert "\n" not in repr(small_set(provenance={"dataset": "a\nb", "recipe": {"ipc": torch.zeros(3, 3)}}))


def test_scores_print_as_the_paper_does() -> None:
    scores = cs.Scores(accuracies=(0.62, 0.64), network="ConvNet")
    assert str(scores) == "63.0 ± 1.0 (2 × ConvNet)"
    assert scores.mean == pytest.approx(0.63)
    assert scores.std == pytest.approx(0.01)


def test_fingerprint_sees_pixels_labels_and_names() -> None:
    data = tiny_data([3, 3])
    assert data.fingerprint == tiny_data([3, 3]).fingerprint
    assert data.fingerprint != tiny_data([3, 3], seed=1).fingerprint
    for fields in ({"labels": data.labels.flip(0)}, {"class_names": ("class 1", "class 0")}):
        assert dataclasses.replace(data, **fields).fingerprint != data.fingerprint  # type: ignore[arg-type]
    assert data.class_counts == (3, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"images": torch.zeros(2, 1, 4, 5, dtype=torch.uint8)}, "square"),
        ({"images": torch.zeros(2, 2, 4, 4, dtype=torch.uint8)}, "1 or 3 channels"),
        ({"images": torch.zeros(2, 1, 4, 4)}, "uint8"),
        ({"labels": torch.tensor([0, 5])}, r"lie in 0\.\.1"),
        ({"labels": torch.tensor([0])}, "labels must have shape"),
        ({"std": (0.0,)}, r"std must be a number above 0 for each channel \(1\), but got \(0.0,\)"),
        ({"std": (float("nan"),)}, "std must be a number above 0"),
        ({"std": (float("inf"),)}, "std must be a number above 0"),
        ({"mean": (float("nan"),)}, "mean must be a number for each channel"),
        ({"mean": (0.1, 0.2)}, r"mean must be a number for each channel \(1\)"),
    ],
)
def test_image_data_is_validated(fields: dict[str, object], message: str) -> None:
    values: dict[str, object] = {
        "images": torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        "labels": torch.tensor([0, 1]),
        "class_names": ("a", "b"),
        "mean": (0.5,),
        "std": (0.5,),
        **fields,
    }
    with pytest.raises(cs.UserError, match=message):
        cs.ImageData(**values)  # type: ignore[arg-type]


def test_mean_and_std_are_kept_as_floats() -> None:
    data = dataclasses.replace(tiny_data([2, 2]), mean=[0, 1, 2], std=torch.ones(3))  # type: ignore[arg-type]
    assert (repr(data.mean), repr(data.std)) == ("(0.0, 1.0, 2.0)", "(1.0, 1.0, 1.0)")


def test_the_images_of_some_classes_labelled_anew() -> None:
    data = tiny_data([2, 3, 4])
    some = of_classes(data, ["class 2", "class 0"])
    assert some.class_counts == (4, 2)
    assert torch.equal(some.images[some.labels == 0], data.images[data.labels == 2])
    assert of_classes(data, data.class_names).fingerprint == data.fingerprint != some.fingerprint
    known = dataclasses.replace(data, known_fingerprint="known")
    assert of_classes(known, known.class_names).fingerprint == "known"
    assert of_classes(known, known.class_names[::-1]).fingerprint != "known"
    with pytest.raises(cs.UserError, match=r"no image of tiny is of one of the classes 'x'$"):
        of_classes(data, ["x"])
    with pytest.raises(cs.UserError, match="class_rows must have a number for each class, or none, but got 2"):
        dataclasses.replace(data, class_rows=(1, 2))


def test_one_network_has_no_spread() -> None:
    for accuracies, text in (((0.5,), "50.0"), ((0.49, 0.51), "50.0 ± 1.0")):
        scores = cs.Scores(accuracies=accuracies, network="ConvNet")
        assert str(scores) == f"{text} ({len(accuracies)} × ConvNet)"
        assert percent({"accuracies": accuracies, "accuracy_mean": 0.5, "accuracy_std": 0.01}) == text
