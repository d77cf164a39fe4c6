"""Seed the inputs of the tests of networks."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seed_inputs() -> None:
    """Draw the same random inputs in every run."""
    torch.manual_seed(0)
