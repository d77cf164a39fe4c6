"""Data for the tests of architecture search."""

from __future__ import annotations

import pytest

import condenset as cs
from helpers.reference_dm import tiny_data

TrainVal = tuple[cs.ImageData, cs.ImageData]


@pytest.fixture(scope="module")
def train_val() -> TrainVal:
    """Training images and validation images."""
    return cs.train_val_split(tiny_data([30] * 3), 0.4)
