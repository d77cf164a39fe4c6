from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

import condenset as cs
from condenset.data.class_selection import select_classes
from helpers.reference_dm import tiny_data


def test_fingerprint_depends_on_pixels_labels_and_names() -> None:
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
        ({"labels": torch.tensor([0, 5])}, r"be in 0\.\.1"),
        ({"labels": torch.tensor([0])}, "labels must have shape"),
        ({"std": (0.0,)}, r"std must be a number above 0 for each channel \(1\), but got \(0.0,\)"),
        ({"std": (float("nan"),)}, "std must be a number above 0"),
        ({"std": (float("inf"),)}, "std must be a number above 0"),
        ({"mean": (float("nan"),)}, "mean must be a number for each channel"),
        ({"origin": "pets"}, "origin must be a mapping"),
        ({"name": Path("pets")}, "name must be text"),
        ({"allow_hflip": "no"}, "allow_hflip must be true or false"),
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


def test_class_names_are_stored_as_a_tuple() -> None:
    data = tiny_data([3, 3])
    same = dataclasses.replace(data, class_names=list(data.class_names))  # type: ignore[arg-type]
    assert (same.class_names, same.fingerprint) == (data.class_names, data.fingerprint)
    condensed = cs.condense(data, "random", ipc=1, device="cpu")
    assert dataclasses.replace(condensed, class_names=["a", "b"]).class_names == ("a", "b")  # type: ignore[arg-type]


def test_mean_and_std_are_stored_as_floats() -> None:
    data = dataclasses.replace(tiny_data([2, 2]), mean=[0, 1, 2], std=torch.ones(3))  # type: ignore[arg-type]
    assert (repr(data.mean), repr(data.std)) == ("(0.0, 1.0, 2.0)", "(1.0, 1.0, 1.0)")


def test_select_classes() -> None:
    data = tiny_data([2, 3, 4])
    selected = select_classes(data, ["class 2", "class 0"])
    assert selected.class_counts == (4, 2)
    assert torch.equal(selected.images[selected.labels == 0], data.images[data.labels == 2])
    assert select_classes(data, data.class_names).fingerprint == data.fingerprint != selected.fingerprint
    stored = dataclasses.replace(data, stored_fingerprint="known")
    assert select_classes(stored, stored.class_names).fingerprint == "known"
    assert select_classes(stored, stored.class_names[::-1]).fingerprint != "known"
    with pytest.raises(cs.UserError, match=r"tiny has no images of the classes 'x'$"):
        select_classes(data, ["x"])
    with pytest.raises(cs.UserError, match="class_stream_ids must have one id per class, or none, but got 2"):
        dataclasses.replace(data, class_stream_ids=(1, 2))


def test_image_data_is_a_torch_dataset() -> None:
    data = tiny_data([3, 2])
    image, label = data[4]
    assert torch.equal(image, data.images[4] / 255) and image.dtype == torch.float32 and label == data.labels[4]
    assert data.images.dtype == torch.uint8
    batches = list(DataLoader(data, batch_size=3))
    assert torch.equal(torch.cat([images for images, _ in batches]), data.images / 255)
    assert torch.equal(data.normalize(torch.cat([images for images, _ in batches])), data.normalized())
    assert torch.equal(torch.cat([labels for _, labels in batches]), data.labels)


def test_fingerprint_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_data([3, 3])
    condensed = cs.condense(data, "random", ipc=1, device="cpu")
    expected = data.fingerprint, condensed.fingerprint

    def fail(*arguments: object) -> str:
        raise AssertionError("computed again")

    monkeypatch.setattr("condenset.data.image_data.hash_tensors", fail)
    monkeypatch.setattr("condenset.data.condensed_set.hash_tensors", fail)
    assert (data.fingerprint, condensed.fingerprint) == expected
