"""Damaged or different weights in a pool of networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import condenset as cs
from condenset.io.files import read_tensors, write_tensors
from helpers.reference_dm import tiny_data

SPEC = "convnet(width=4, depth=1)"


def test_a_pool_with_nan_is_refused_and_other_networks_change_the_fingerprint(tmp_path: Path) -> None:
    data, directory = tiny_data([10, 10]), tmp_path / "pool"
    pool = cs.train_pool(data, directory, num_networks=1, network=SPEC, epochs=1, device="cpu", verbose=False)
    path = directory / "0000.safetensors"
    tensors, metadata = read_tensors(path)
    tensors["weights"][0, 0] = torch.nan
    write_tensors(path, tensors, metadata)
    with pytest.raises(cs.UserError, match=r"0000\.safetensors does not contain the weights of its network"):
        cs.condense(data, ipc=1, pool=pool, network=SPEC, iterations=1, device="cpu")
    changed = metadata["pool"].replace('"step": ', '"step": 1')  # as if trained on another machine
    write_tensors(path, tensors, {"pool": changed})
    assert cs.NetworkPool.load(directory).fingerprint != pool.fingerprint
