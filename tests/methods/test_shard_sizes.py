"""Shards divide the classes completely, in whole chunks, and become smaller."""

from __future__ import annotations

import itertools

import pytest

from condenset.methods.sharding import split_shards


@pytest.mark.parametrize("num_workers", [1, 2, 8, 64])
@pytest.mark.parametrize("num_classes", [1, 2, 10, 100, 1000])
@pytest.mark.parametrize("chunk", [1, 3, 18])
def test_shards_cover_all_classes_once(num_classes: int, num_workers: int, chunk: int) -> None:
    shards = split_shards(num_classes, num_workers, chunk)
    assert list(itertools.chain(*shards)) == list(range(num_classes))
    sizes = list(map(len, shards))
    assert sizes == sorted(sizes, reverse=True)
    assert all(size % chunk == 0 for size in sizes[:-1])


def test_the_first_shard_is_half_of_the_share_of_a_worker() -> None:
    sizes = list(map(len, split_shards(1000, 8)))
    assert (sizes[0], len(sizes)) == (62, 51)
    assert sizes[-2] == 7


def test_few_classes_are_shards_of_one() -> None:
    assert list(map(len, split_shards(4, 2))) == [1, 1, 1, 1]
