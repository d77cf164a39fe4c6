"""Partition: stored images decode to several images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import scipy.fft
import torch
import torch.nn.functional as F
from torch import Tensor

import condenset as cs
from condenset.data.partition import UNPARTITIONED, NormalizedParts, PartLayout
from condenset.io.files import read_tensors, write_tensors
from helpers.reference_dm import decode_image

FACTORS = [(2, 8), (3, 6), (4, 8)]  # parts per side, image size
LAYOUTS = [
    *((PartLayout(factor, decoder), size) for factor, size in FACTORS for decoder in ("bilinear", "bicubic")),
    *((PartLayout(factor, "dct"), size) for factor, size in ((2, 7), (3, 8), (4, 8))),
]


def random_images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
def test_decoding_gives_the_images_of_a_slow_reference(layout: PartLayout, size: int) -> None:
    stored = random_images(2, 3, 3, size, size).requires_grad_()  # classes, images, channels, height, width
    decoded = layout.decode(stored)
    images = [decode_image(image, layout.partition, layout.decoder) for image in stored.flatten(0, 1)]
    expected = torch.cat(images).view_as(decoded)
    assert decoded.shape == (2, 3 * layout.partition**2, 3, size, size)
    torch.testing.assert_close(decoded, expected, rtol=1e-5, atol=1e-5)
    target = random_images(*decoded.shape)
    gradient, expected_gradient = (torch.autograd.grad((x * target).sum(), stored)[0] for x in (decoded, expected))
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("factor", "size"), FACTORS)
def test_encoding_stores_every_image_at_a_fraction_of_its_size(factor: int, size: int) -> None:
    images = random_images(2, 2 * factor**2, 3, size, size)
    stored = PartLayout(factor).encode(images)
    assert stored.shape == (2, 2, 3, size, size)
    part = size // factor
    for label, index in ((0, 0), (1, 1)):
        for position in range(factor**2):
            y, x = (part * number for number in divmod(position, factor))
            small = F.interpolate(images[label, index * factor**2 + position][None], size=part, mode="area")[0]
            torch.testing.assert_close(stored[label, index, :, y : y + part, x : x + part], small)


@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
def test_encoding_keeps_the_order_and_the_colour_of_images(layout: PartLayout, size: int) -> None:
    uniform = random_images(2, 2 * layout.num_parts, 3, 1, 1).expand(-1, -1, -1, size, size)
    torch.testing.assert_close(layout.decode(layout.encode(uniform)), uniform)


@pytest.mark.parametrize(("channels", "size", "partition"), [(3, 8, 2), (3, 9, 4), (1, 7, 2), (4, 8, 3)])
def test_low_frequencies_are_stored_without_loss(channels: int, size: int, partition: int) -> None:
    """Encoding is the orthogonal projection on the stored frequencies."""
    layout = PartLayout(partition, "dct")
    images = random_images(2 * layout.num_parts, channels, size, size)
    projection = layout.decode(layout.encode(images))
    torch.testing.assert_close(layout.decode(layout.encode(projection)), projection)
    torch.testing.assert_close(
        ((images - projection) * projection).sum((1, 2, 3)), torch.zeros(len(images)), rtol=0, atol=1e-4
    )
    for image in projection:
        frequencies = abs(scipy.fft.dctn(image.numpy(), norm="ortho")) > 1e-5
        assert frequencies.sum() == channels * size**2 // layout.num_parts
        assert frequencies[0].sum() > frequencies[1:].sum()  # brightness has more detail than colour


def test_low_frequencies_hold_more_detail_than_parts() -> None:
    rows = torch.linspace(0, 5, 32)
    smooth = (rows[:, None].sin() * rows.cos()).expand(9, 3, 32, 32) * torch.tensor([1.0, 0.8, 0.9])[:, None, None]
    bicubic, dct = (PartLayout(factor, decoder) for factor, decoder in ((2, "bicubic"), (3, "dct")))
    errors = [
        (layout.decode(layout.encode(images)) - images).square().mean()
        for layout, images in ((bicubic, smooth[:4]), (dct, smooth))
    ]
    assert errors[1] < errors[0] / 4


def test_normalised_images_decode_as_pixels_do() -> None:
    mean, std = (0.5, 0.3, 0.4), (0.2, 0.3, 0.25)
    mean_C11, std_C11 = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    for layout, stats in ((PartLayout(2, "bicubic"), (mean, std)), (PartLayout(2, "dct"), ((0.0,) * 3, (0.25,) * 3))):
        parts = NormalizedParts(layout, mean, std, torch.device("cpu"))
        images = random_images(layout.num_parts, 3, 8, 8)
        stored = layout.encode(images)
        normalized = parts.encode((images - mean_C11) / std_C11)
        assert layout.stored_stats(mean, std) == stats
        stored_mean, stored_std = (torch.tensor(values)[:, None, None] for values in stats)
        torch.testing.assert_close(normalized * stored_std + stored_mean, stored)
        torch.testing.assert_close(parts.decode(normalized) * std_C11 + mean_C11, layout.decode(stored))


@pytest.mark.parametrize("decoder", ["bilinear", "dct"])
def test_clamping_projects_the_pixels_in_range(decoder: str) -> None:
    mean, std = (0.5, 0.3, 0.4), (0.2, 0.3, 0.25)
    mean_C11, std_C11 = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    parts = NormalizedParts(PartLayout(2, decoder), mean, std, torch.device("cpu"))
    stored = parts.encode((3 * random_images(8, 3, 8, 8) - 1 - mean_C11) / std_C11)
    pixels = parts.decode(stored) * std_C11 + mean_C11
    assert pixels.min() < -0.1 and pixels.max() > 1.1
    expected = parts.encode((pixels.clamp(0, 1) - mean_C11) / std_C11) if decoder == "dct" else None
    parts.clamp_(stored)
    clamped = parts.decode(stored) * std_C11 + mean_C11
    assert clamped.clamp(0, 1).sub(clamped).abs().sum() < pixels.clamp(0, 1).sub(pixels).abs().sum() / 2
    if expected is not None:
        torch.testing.assert_close(stored, expected)
    inside = parts.encode((0.5 + 0.1 * random_images(8, 3, 8, 8) - mean_C11) / std_C11)
    before = inside.clone()
    parts.clamp_(inside)
    assert torch.equal(inside, before)  # rounding would add up over thousands of steps


def test_decoding_in_inference_mode_leaves_gradients_possible() -> None:
    layout, shape = PartLayout(2, "dct"), (1, 3, 14, 14)  # a size of its own, which no other test has cached
    with torch.inference_mode():
        layout.decode(torch.zeros(shape))
    stored = torch.zeros(shape, requires_grad=True)
    layout.decode(stored).sum().backward()
    assert stored.grad is not None and stored.grad.abs().max() > 0


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


@pytest.mark.parametrize("decoder", ["nearest", None, 7])
def test_sets_without_parts_have_a_known_decoder(decoder: Any) -> None:
    fields: dict[str, Any] = {"class_names": ("a",), "mean": (0.0,) * 3, "std": (1.0,) * 3}
    images, labels = random_images(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(cs.UserError, match=f"decoder must be one of bilinear, bicubic, dct, but got {decoder!r}"):
        cs.CondensedSet(images=images, labels=labels, decoder=decoder, **fields)
    with pytest.raises(cs.UserError, match="decoder must be"):
        cs.CondensedSet.decode(images, labels=labels, decoder=decoder, **fields)
    assert cs.CondensedSet(images=images, labels=labels, decoder="bicubic", **fields).decoder == "bilinear"


def test_factor_one_changes_nothing() -> None:
    images = random_images(2, 3, 8, 8)
    assert UNPARTITIONED.decode(images) is images
    assert UNPARTITIONED.encode(images) is images


def test_parts_have_the_label_of_their_image() -> None:
    assert PartLayout(2).decode_labels(torch.tensor([1, 0])).tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    soft = torch.tensor([[0.2, 0.8], [0.6, 0.4]])
    assert torch.equal(PartLayout(2, "dct").decode_labels(soft), soft[[0] * 4 + [1] * 4])


@pytest.mark.parametrize(
    ("layout", "channels", "size", "message"),
    [
        (PartLayout(3), 3, 8, "partition must divide the image size of 8 pixels unless the decoder is dct, but got 3"),
        (PartLayout(2, "bicubic"), 3, 7, "partition must divide .* 7 pixels unless the decoder is dct, but got 2"),
        (PartLayout(4), 3, 2, "partition must divide the image size of 2 pixels unless the decoder is dct, but got 4"),
        (PartLayout(8, "dct"), 3, 4, "partition must be at most 6 for images of 48 values, but got 8"),
    ],
)
def test_images_must_fit_the_layout(layout: PartLayout, channels: int, size: int, message: str) -> None:
    with pytest.raises(cs.UserError, match=rf"\A{message}\Z"):
        layout.check_shape(channels, size)


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
    assert torch.equal(condensed.images, PartLayout(2).decode(condensed.compact))
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


@pytest.mark.parametrize(("factor", "decoder"), [(2, "bicubic"), (2, "dct"), (3, "dct")])
def test_files_record_the_decoder(tmp_path: Path, factor: int, decoder: str) -> None:
    condensed, path = make_set(factor, decoder=decoder), tmp_path / "set.safetensors"
    condensed.save(path)
    loaded = cs.CondensedSet.load(path)
    assert (loaded.partition, loaded.decoder) == (factor, decoder)
    assert torch.equal(loaded.images, condensed.images)
    assert torch.equal(loaded.labels, condensed.labels)
    assert torch.equal(loaded.stored_images, random_images(3, 3, 8, 8))
    assert json.loads(read_tensors(path)[1]["condenset"])["format"] == 2  # older versions do not read it


def test_a_set_without_stored_images_has_no_decoder() -> None:
    condensed = make_set(decoder="bicubic")
    assert dataclasses.replace(condensed, compact=None, partition=1).decoder == "bilinear"


def test_files_of_older_versions_decode_bilinearly(tmp_path: Path) -> None:
    condensed, path = make_set(), tmp_path / "set.safetensors"
    condensed.save(path)
    tensors, metadata = read_tensors(path)
    content = json.loads(metadata["condenset"])
    assert content["format"] == 1
    del content["decoder"]
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
        ({"partition": 3}, "partition must divide the image size of 8 pixels unless the decoder is dct, but got 3"),
        ({"decoder": "nearest"}, "decoder must be one of bilinear, bicubic, dct, but got 'nearest'"),
        ({"decoder": None}, "decoder must be one of bilinear, bicubic, dct, but got None"),
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
    if name in ("partition", "decoder"):
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
