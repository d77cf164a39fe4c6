"""Partition: decoding is upsampling of the parts, and sets store compact images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import condenset as cs
from condenset.data.partition import UPSAMPLINGS, check_partition, decode_labels, decode_partition, encode_partition
from condenset.io.files import read_tensors, write_tensors
from helpers.reference_dm import decode_image

FACTORS = [(2, 8), (3, 6), (4, 8)]  # parts per side, image size


def random_images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("upsampling", UPSAMPLINGS)
@pytest.mark.parametrize(("factor", "size"), FACTORS)
def test_decoding_is_upsampling(factor: int, size: int, upsampling: str) -> None:
    compact = random_images(2, 3, 3, size, size).requires_grad_()  # classes, images, channels, height, width
    decoded = decode_partition(compact, factor, upsampling)
    images = [decode_image(image, factor, upsampling) for class_images in compact for image in class_images]
    expected = torch.cat(images).view_as(decoded)
    assert decoded.shape == (2, 3 * factor**2, 3, size, size)
    torch.testing.assert_close(decoded, expected)
    target = random_images(*decoded.shape)
    gradient, expected_gradient = (torch.autograd.grad((x * target).sum(), compact)[0] for x in (decoded, expected))
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize(("factor", "size"), FACTORS)
def test_encoding_stores_every_image_at_a_fraction_of_its_size(factor: int, size: int) -> None:
    images = random_images(2, 2 * factor**2, 3, size, size)
    compact = encode_partition(images, factor)
    assert compact.shape == (2, 2, 3, size, size)
    part = size // factor
    for label, index in ((0, 0), (1, 1)):
        for position in range(factor**2):
            y, x = (part * number for number in divmod(position, factor))
            small = F.interpolate(images[label, index * factor**2 + position][None], size=part, mode="area")[0]
            torch.testing.assert_close(compact[label, index, :, y : y + part, x : x + part], small)
    constant = random_images(factor**2, 1, 1, 1).expand(-1, 3, size, size)
    torch.testing.assert_close(decode_partition(encode_partition(constant, factor), factor), constant)


def test_changed_images_of_a_partitioned_set_are_not_lost(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"class_names": ("a", "b"), "mean": (0.0,), "std": (1.0,)}
    compact, labels = random_images(300, 1, 4, 4), torch.arange(300) % 2
    condensed = cs.CondensedSet.decode(compact, labels=labels, partition=2, **fields)
    path = tmp_path / "set.safetensors"
    condensed.save(path)
    darker = condensed.images.clone()
    darker[-1] *= 0.5
    for change in ({"images": darker}, {"labels": condensed.labels.roll(1)}):
        with pytest.raises(cs.UserError, match="to keep the change, replace compact by None and partition by 1"):
            dataclasses.replace(condensed, **change).save(path, overwrite=True)
    changed = dataclasses.replace(condensed, images=darker, compact=None, partition=1)
    changed.save(path, overwrite=True)
    assert torch.equal(cs.CondensedSet.load(path).images, darker)
    with pytest.raises(cs.UserError, match=r"partition must be 1 without stored images \(compact\), but got 2"):
        dataclasses.replace(condensed, compact=None)


def test_factor_one_changes_nothing() -> None:
    images = random_images(2, 3, 8, 8)
    assert decode_partition(images, 1) is images
    assert encode_partition(images, 1) is images


def test_parts_have_the_label_of_their_image() -> None:
    assert decode_labels(torch.tensor([1, 0]), 2).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    soft = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    assert torch.equal(decode_labels(soft, 2), soft[[0] * 4 + [1] * 4])


@pytest.mark.parametrize(("size", "factor"), [(8, 3), (7, 2), (2, 4)])
def test_factor_must_divide_the_image_size(size: int, factor: int) -> None:
    with pytest.raises(
        cs.UserError, match=rf"\Apartition must divide the image size of {size} pixels, but got {factor}\Z"
    ):
        check_partition(size, factor)


def make_set(factor: int = 2, **fields: Any) -> cs.CondensedSet:
    values = {
        "compact": random_images(3, 3, 8, 8),
        "labels": torch.tensor([0, 1, 1]),
        "class_names": ("cat", "dog"),
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.25),
        "provenance": {"method": "idm", "recipe": {"ipc": [1, 2]}},
        **fields,
    }
    return cs.CondensedSet.decode(values.pop("compact"), partition=factor, **values)


def test_a_set_has_compact_and_decoded_images() -> None:
    condensed = make_set()
    assert condensed.compact is not None
    assert torch.equal(condensed.compact, random_images(3, 3, 8, 8))
    assert condensed.stored_images is condensed.compact
    assert torch.equal(condensed.images, decode_partition(condensed.compact, 2))
    assert (len(condensed), condensed.images.shape) == (12, (12, 3, 8, 8))
    assert condensed.labels.tolist() == [0] * 4 + [1] * 8
    assert repr(condensed) == (
        "CondensedSet(12 images of 3x8x8, 2 classes, stored as 3; idm, 1–2 per class)"  # the stored images count
    )
    plain = make_set(1)
    assert (plain.compact, plain.partition, len(plain)) == (None, 1, 3)
    assert plain.stored_images is plain.images
    assert "stored as" not in repr(plain)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 1]), torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.0, 1.0]])])
def test_files_contain_the_compact_images(tmp_path: Path, labels: Tensor) -> None:
    condensed, path = make_set(labels=labels), tmp_path / "set.safetensors"
    condensed.save(path)
    tensors, metadata = read_tensors(path)
    assert torch.equal(tensors["images"], condensed.stored_images)
    assert torch.equal(tensors["labels"], labels)
    assert json.loads(metadata["condenset"])["partition"] == 2
    loaded = cs.CondensedSet.load(path)
    assert torch.equal(loaded.images, condensed.images)
    assert torch.equal(loaded.stored_images, condensed.stored_images)
    assert torch.equal(loaded.labels, condensed.labels)
    assert loaded.partition == 2
    assert loaded.fingerprint == condensed.fingerprint
    assert loaded.fingerprint != make_set(4, labels=labels).fingerprint


def test_files_record_the_upsampling(tmp_path: Path) -> None:
    condensed, path = make_set(upsampling="bicubic"), tmp_path / "set.safetensors"
    assert not torch.allclose(condensed.images, make_set().images, atol=1e-3)
    condensed.save(path)
    loaded = cs.CondensedSet.load(path)
    assert loaded.upsampling == "bicubic"
    assert torch.equal(loaded.images, condensed.images)


def test_files_of_older_versions_decode_bilinearly(tmp_path: Path) -> None:
    condensed, path = make_set(), tmp_path / "set.safetensors"
    condensed.save(path)
    tensors, metadata = read_tensors(path)
    content = json.loads(metadata["condenset"])
    del content["upsampling"]
    write_tensors(path, tensors, {"condenset": json.dumps(content)})
    assert torch.equal(cs.CondensedSet.load(path).images, condensed.images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition": 0}, "partition must be .*, but got 0"),
        ({"partition": -2}, "partition must be .*, but got -2"),
        ({"partition": 9}, "partition must be .*, but got 9"),
        ({"partition": 10**30}, "partition must be .*, but got 10000"),
        ({"partition": 2.5}, "partition must be .*, but got 2.5"),
        ({"partition": True}, "partition must be .*, but got True"),
        ({"partition": "2"}, "partition must be .*, but got '2'"),
        ({"partition": None}, "partition must be .*, but got None"),
        ({"partition": 3}, "partition must divide the image size of 8 pixels, but got 3"),
        ({"upsampling": "nearest"}, "upsampling must be one of bilinear, bicubic, but got 'nearest'"),
        ({"upsampling": None}, "upsampling must be one of bilinear, bicubic, but got None"),
        ({"images": torch.rand(3, 3, 8, 6)}, "square"),
        ({"images": torch.rand(3, 8, 8)}, r"\(3, 8, 8\)"),
        ({"images": torch.rand(3, 0, 8, 8)}, r"\(3, 0, 8, 8\)"),
        ({"images": torch.rand(3, 3, 0, 0)}, r"\(3, 3, 0, 0\)"),
        ({"images": torch.zeros(3, 3, 8, 8, dtype=torch.uint8)}, "images must be float32, but got torch.uint8"),
        ({"images": torch.zeros(3, 3, 8, 8, dtype=torch.bool)}, "images must be float32, but got torch.bool"),
        ({"images": torch.full((3, 3, 8, 8), float("nan"))}, "images must be finite"),
        ({"labels": torch.tensor([0, 1])}, r"there must be 3 labels, one per stored image, but got \(2,\)"),
        ({"labels": torch.tensor(1)}, r"one per stored image, but got \(\)"),
    ],
)
def test_damaged_files_are_rejected_in_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "set.safetensors"
    make_set().save(path)
    tensors, metadata = read_tensors(path)
    content = json.loads(metadata["condenset"])
    name, value = next(iter(change.items()))
    if name in ("partition", "upsampling"):
        content[name] = value
    else:
        tensors[name] = value
    write_tensors(path, tensors, {"condenset": json.dumps(content)})
    with pytest.raises(cs.UserError, match=rf"\A.*set\.safetensors.*{message}.*\Z"):
        cs.CondensedSet.load(path)


def test_sets_that_decode_to_too_many_bytes_are_refused_before_they_are_allocated() -> None:
    num = 50_000
    compact = torch.zeros(1, 1, 1, 1).expand(num, 3, 32, 32)  # takes four bytes
    message = r"\Aa set must decode to at most 32 GiB, but got 36\.6 GiB; use fewer images or a smaller partition\Z"
    with pytest.raises(cs.UserError, match=message):
        make_set(8, compact=compact, labels=torch.zeros(num, dtype=torch.int64))
    soft = torch.zeros(1, 1).expand(3, 10**9)
    with pytest.raises(cs.UserError, match="a set must decode to at most 32 GiB"):
        make_set(2, labels=soft)


def test_files_that_decode_to_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    condensed, path = make_set(), tmp_path / "set.safetensors"
    condensed.save(path)
    size = 4 * (condensed.storage_bytes + condensed.stored_labels.nbytes)
    monkeypatch.setattr("condenset.data.partition.MAX_DECODED_BYTES", size)
    assert torch.equal(cs.CondensedSet.load(path).images, condensed.images)
    monkeypatch.setattr("condenset.data.partition.MAX_DECODED_BYTES", size - 1)
    with pytest.raises(cs.UserError, match=r"\A.*set\.safetensors: a set must decode to at most .* partition\Z"):
        cs.CondensedSet.load(path)


def test_images_must_be_those_that_the_stored_ones_decode_to() -> None:
    condensed = make_set()
    fields = {name: getattr(condensed, name) for name in ("class_names", "mean", "std", "compact")}
    with pytest.raises(cs.UserError, match="images must be the 12 images that the stored ones decode to, but got 11"):
        cs.CondensedSet(images=condensed.images[1:], labels=condensed.labels[1:], partition=2, **fields)
