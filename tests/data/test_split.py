"""Splitting training data into training and validation images."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import condenset as cs
from condenset.data.split import describe_overlap
from helpers.reference_dm import tiny_data


def test_share_of_every_class() -> None:
    data = tiny_data([20, 10, 3])
    train, val = cs.train_val_split(data, 0.2, seed=5)
    assert val.class_counts == (4, 2, 1)
    assert train.class_counts == (16, 8, 2)
    train_images, val_images = ({image.numpy().tobytes() for image in part.images} for part in (train, val))
    assert train_images | val_images == {image.numpy().tobytes() for image in data.images}
    assert not train_images & val_images
    assert torch.equal(cs.train_val_split(data, 0.2, seed=5)[1].images, val.images)
    assert not torch.equal(cs.train_val_split(data, 0.2, seed=6)[1].images, val.images)
    assert len({data.fingerprint, train.fingerprint, val.fingerprint}) == 3


def test_overlap_of_parts() -> None:
    data = tiny_data([20, 10, 3])
    train, val = cs.train_val_split(data, 0.2)
    for other in (cs.train_val_split(data, 0.2, seed=1)[1], cs.train_val_split(data, 0.1)[1]):
        assert describe_overlap(train, other) == "may contain"
    for images, overlap in ((val, ""), (train, "contain"), (data, "contain"), (tiny_data([5, 5, 5]), "")):
        assert describe_overlap(train, images) == overlap
    assert describe_overlap(train, cs.train_val_split(data, 0.2)[1]) == ""  # the same division again
    assert describe_overlap(cs.train_val_split(tiny_data([5, 5, 5]))[0], val) == ""
    condensed = cs.condense(train, "random", ipc=1, device="cpu", verbose=False)
    assert describe_overlap(condensed, val) == ""
    assert describe_overlap(dataclasses.replace(condensed, provenance={}), val) == ""


def test_parts_have_the_origin_of_the_images() -> None:
    train = cs.load("digits", verbose=False).train
    assert [part.origin for part in cs.train_val_split(train)] == [{"dataset": "digits"}] * 2


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_both_parts_have_images_of_every_class(share: float) -> None:
    for part in cs.train_val_split(tiny_data([2, 3, 40]), share):
        assert min(part.class_counts) >= 1


def test_invalid_arguments() -> None:
    for share in (0, 1, -0.1, "a"):
        with pytest.raises(cs.UserError, match="val_share must"):
            cs.train_val_split(tiny_data([4, 4]), share)  # type: ignore[arg-type]
    with pytest.raises(cs.UserError, match="one image"):
        cs.train_val_split(tiny_data([4, 1]))
