"""A small pool of trained networks, and distribution matching that samples from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import condenset as cs
from condenset.engine import ComputeDevice
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
