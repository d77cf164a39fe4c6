"""A pool of networks for tests."""

from __future__ import annotations

import pytest

import condenset as cs
from helpers.pools import make_pool


@pytest.fixture(scope="module")
def trained_pool(tmp_path_factory: pytest.TempPathFactory) -> cs.NetworkPool:
    """A pool of three small networks."""
    return make_pool(tmp_path_factory.mktemp("pool") / "a")
