"""The memory limit of `Memory` reaches the condensing of a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from condenset import CondensedSet, ImageData, Memory
from condenset.methods import METHODS, Recipe
from condenset.runs.context import RunContext
from helpers.reference_dm import tiny_data
from helpers.registries import replaced_item


def test_the_memory_limit_reaches_the_method(tmp_path: Path) -> None:
    limits: list[int | None] = []
    random = METHODS["random"]

    def condense(data: ImageData, recipe: Recipe, run: RunContext) -> CondensedSet:
        limits.append(run.memory_limit)
        return random.condense(data, recipe, run)

    data = tiny_data([6, 6])
    with replaced_item(METHODS, dataclasses.replace(random, condense=condense)):
        memory = Memory(ipc=1, method="random", device="cpu", memory_limit="1GiB", on_repeat="merge", verbose=False)
        memory.add(data)
        memory.save(tmp_path / "a.safetensors")
        Memory.load(tmp_path / "a.safetensors", device="cpu", memory_limit=2**20).add(data)
    assert limits == [2**30, 2**20]
