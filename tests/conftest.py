"""Without a GPU kernels run in triton's interpreter, so that they are tested all the same; and what files share."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # on tiny tensors threads only wait for each other; torch reads it once

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

import condenset as cs
from plain import tiny_data
from pooled import small_pool


@pytest.fixture(scope="module")
def parts() -> tuple[cs.ImageData, cs.ImageData]:
    """What architectures are trained on, and what they are validated on."""
    return cs.split_off(tiny_data([30] * 3), 0.4)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> cs.Pool:
    """A pool of three small networks."""
    return small_pool(tmp_path_factory.mktemp("pool") / "a")
