"""A loop of a few tensors that counts its iterations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from condenset.engine import ComputeDevice
from condenset.runs.context import RunContext

CPU = ComputeDevice.select("cpu", "float32")


def make_run(directory: Path | None, **fields: Any) -> RunContext:
    """Return a run of the job dm-1."""
    return RunContext(**{"compute": CPU, "directory": directory, "job": "dm-1", "recipe": {"lr": 1.0}, **fields})


def make_state() -> dict[str, Tensor]:
    """Return the state before the first iteration."""
    return {"images": torch.zeros(2), "losses": torch.zeros(4), "clock": torch.zeros((), dtype=torch.int64)}


def counting_step(
    state: dict[str, Tensor], after_step: Callable[[int], None] = lambda i: None
) -> Callable[[], Callable[[int], None]]:
    """Return the `prepare` function of a step that adds 1 to the images and then calls `after_step`."""

    def step(i: int) -> None:
        assert int(state["clock"]) == i
        state["images"] += 1
        state["losses"][i % 4] = 1 / (i + 1)
        state["clock"] += 1
        after_step(i)

    return lambda: step


def checkpoint_tensors(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of the checkpoint in a directory."""
    return safetensors.torch.load_file(directory / "checkpoint")
