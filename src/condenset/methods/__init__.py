"""The table of methods, and `condense`, which runs one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from condenset.engine import Place
from condenset.methods.coreset import forgetting, herding, kcenter, random
from condenset.methods.gradient import dc, dsa
from condenset.methods.labels import ld
from condenset.methods.matching import dm
from condenset.methods.pixels import mmd
from condenset.methods.unrolled import dd
from condenset.presets import make_recipe
from condenset.progress import Shown
from condenset.runs import Run
from condenset.sizes import in_bytes
from condenset.types import CondensedSet, ImageData, check_data

METHODS: dict[str, Callable[[ImageData, Any, Run], CondensedSet]] = {
    "random": random,
    "herding": herding,
    "kcenter": kcenter,
    "forgetting": forgetting,
    "mmd": mmd,
    "dd": dd,
    "ld": ld,
    "dc": dc,
    "dsa": dsa,
    "dm": dm,
}


def condense(
    data: ImageData,
    method: str = "dm",
    *,
    ipc: int,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str | None = None,
    memory: int | str | None = None,
    **fields: Any,
) -> CondensedSet:
    """Condense a dataset to `ipc` images a class; any field of the method's recipe is a keyword.

    memory: bytes, or such as "4GiB", that data, images and the maps of the classes passing together may take.
    """
    check_data("data", data)
    recipe = make_recipe(method, ipc=ipc, name=data.name, size=data.size, **fields)
    bound = None if memory is None else in_bytes(memory)
    run = Run(seed=seed, place=Place.best(device, precision), memory=bound, progress=Shown())
    return METHODS[method](data, recipe, run)
