"""The steps and epochs after which networks of a pool are validated and stored."""

from __future__ import annotations

import itertools

from condenset.methods.pools.trainer import checkpoint_epochs, early_validation_steps


def test_validation_is_frequent_at_first() -> None:
    assert early_validation_steps(1) == frozenset()
    assert early_validation_steps(4) == {1, 2, 3}
    steps = sorted(early_validation_steps(176))
    assert steps[:4] == [1, 2, 3, 4]
    assert steps[-1] < 176
    assert all(later <= 1.25 * earlier + 1 for earlier, later in itertools.pairwise(steps))


def test_checkpoints_are_at_equal_intervals() -> None:
    assert checkpoint_epochs(60, 20) == set(range(0, 61, 3))
    assert checkpoint_epochs(6, 1) == {0, 6}
    assert checkpoint_epochs(2, 20) == {0, 1, 2}
    assert checkpoint_epochs(60, 0) == set()
