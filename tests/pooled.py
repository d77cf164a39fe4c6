"""A small pool of trained networks, and matching that draws from one, for the tests of pools."""

from __future__ import annotations

from pathlib import Path

import condenset as cs
from condenset.engine import Place
from condenset.methods.matching import Matching, mean_distance
from condenset.methods.pools import Pool
from condenset.recipes import DistributionRecipe
from condenset.runs import Run
from plain import tiny_data

CPU = Place.best("cpu")
SPEC = "convnet(width=8, depth=2)"
COUNTS = [12, 12, 12]
TRAINING = {"network": SPEC, "epochs": 7, "batch": 8, "lr": 0.05}


def small_pool(folder: Path, num: int = 3, **fields: object) -> Pool:
    return cs.train_pool(tiny_data(COUNTS), folder, num=num, device="cpu", **{**TRAINING, **fields})  # type: ignore[arg-type]


def pooled(pool: Pool, **fields: object) -> DistributionRecipe:
    known = {"ipc": 2, "network": SPEC, "iterations": 4, "batch": 5, "pool": str(pool.folder)}
    return DistributionRecipe(**{**known, **fields})  # type: ignore[arg-type]


def problem(recipe: DistributionRecipe, seed: int = 3) -> Matching:
    return Matching(tiny_data(COUNTS), [recipe], Run(seed=seed, place=CPU), mean_distance)
