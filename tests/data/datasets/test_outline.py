"""The outline of a dataset that does not exist has its shape but no images."""

from __future__ import annotations

import pytest

from condenset.data.datasets.outline import outline_dataset
from condenset.errors import UserError


def test_an_outline_of_a_billion_images_takes_no_memory() -> None:
    data = outline_dataset("future", 100_000, 10_000, 64)
    assert (len(data), data.num_classes, data.channels, data.size) == (10**9, 100_000, 3, 64)
    assert data.class_counts == (10_000,) * 100_000
    assert data.images.untyped_storage().nbytes() + data.labels.untyped_storage().nbytes() < 100
    assert data.fingerprint == "outline"


@pytest.mark.parametrize(("classes", "images", "size"), [(0, 5, 8), (5, 0, 8), (5, 5, 0), (2**24, 2**20, 8)])
def test_impossible_sizes_are_refused(classes: int, images: int, size: int) -> None:
    with pytest.raises(UserError, match="must be"):
        outline_dataset("future", classes, images, size)
