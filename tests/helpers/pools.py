"""A small pool of trained networks, and distribution matching that samples from one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import condenset as cs
from condenset.engine import ComputeDevice
from condenset.io.files import read_tensors, write_tensors
from condenset.methods.matching.dm import DistributionMatching, make_problem
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data

CPU = ComputeDevice.select("cpu")
SPEC = "convnet(width=8, depth=2)"
COUNTS = [12, 12, 12]
TRAINING: dict[str, Any] = {"network": SPEC, "epochs": 7, "batch_size": 8, "lr": 0.05}


def make_pool(directory: Path, num_networks: int = 3, **fields: Any) -> cs.NetworkPool:
    """Train a pool on tiny images; each network takes 40 steps."""
    settings = {**TRAINING, **fields}
    return cs.train_pool(tiny_data(COUNTS), directory, num_networks=num_networks, device="cpu", **settings)


def pool_recipe(pool: cs.NetworkPool, **fields: Any) -> cs.DMRecipe:
    """Return a short recipe that samples networks from the pool."""
    settings = {"ipc": 2, "network": SPEC, "iterations": 4, "batch_size": 5, "pool": str(pool.directory)}
    return cs.DMRecipe(**{**settings, **fields})


def make_pool_problem(recipe: cs.DMRecipe, seed: int = 3) -> DistributionMatching:
    """Return the initial state of a run on the images that the pool was trained on."""
    return make_problem(tiny_data(COUNTS), [recipe], RunContext(seed=seed, compute=CPU))


def change_pool_file(path: Path, **changes: Any) -> None:
    """Change the metadata in the file of a network."""
    tensors, metadata = read_tensors(path)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    write_tensors(path, tensors, {"pool": json.dumps(json.loads(metadata["pool"]) | changes)})


def set_pool_seconds(directory: Path, seconds: Iterable[float]) -> cs.NetworkPool:
    """Change the training times of the networks of a pool, in the order of their numbers."""
    for path, value in zip(sorted(directory.glob("*.safetensors")), seconds, strict=True):
        change_pool_file(path, seconds=value)
    return cs.NetworkPool.load(directory)


def read_pool_files(directory: Path) -> dict[str, bytes]:
    """Return the content of the files of a pool with all training times set to 0."""
    for path in directory.glob("*.safetensors"):
        change_pool_file(path, seconds=0.0)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def pool_files_equal(directory: Path, other: Path) -> bool:
    """Return whether two pools have the same files, apart from the training times, which it sets to 0."""
    return read_pool_files(directory) == read_pool_files(other)
