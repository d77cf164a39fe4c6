"""Save and load the state of a loop."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from condenset.errors import UserError
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file, read_tensor_metadata

CHECKPOINT = "checkpoint"
CHECKPOINT_SECONDS = 30.0
LONG_SAVE_SECONDS = 0.6  # slower saves become proportionally rarer, so that they cost at most 2% of the time
MAX_INTERVAL = 20.0  # in CHECKPOINT_SECONDS: a kill never loses more than about ten minutes


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """The metadata of a checkpoint.

    Attributes:
        job: The job that the state belongs to.
        recipe: The recipe of the job, as JSON.
        seed: The seed of the run.
        step: The number of iterations done.
        seconds: The time spent on them.
    """

    job: str
    recipe: Mapping[str, Any]
    seed: int
    step: int
    seconds: float


@dataclass
class CheckpointTimer:
    """Decide when the next checkpoint is due.

    Attributes:
        last_save: The time of the last checkpoint, or of the start.
        interval: The time between two checkpoints, in CHECKPOINT_SECONDS.
    """

    last_save: float = field(default_factory=time.monotonic)
    interval: float = 1.0

    def is_due(self) -> bool:
        """Return whether the interval has passed."""
        return time.monotonic() - self.last_save >= self.interval * CHECKPOINT_SECONDS

    def restart(self) -> None:
        """Begin a new interval now."""
        self.last_save = time.monotonic()

    def record_save(self, began: float) -> None:
        """Begin a new interval after a save, longer if the save was slow."""
        self.restart()
        self.interval = min(max(1.0, (self.last_save - began) / LONG_SAVE_SECONDS), MAX_INTERVAL)


def write_checkpoint(path: Path, info: CheckpointInfo, state: Mapping[str, Tensor]) -> None:
    """Write a checkpoint atomically."""
    with wrap_os_errors(path):
        write_tensors(path, state, {"checkpoint": json.dumps(vars(info))})


def read_info(path: Path) -> CheckpointInfo | None:
    """Return the metadata of a checkpoint, or None if there is no valid one."""
    if not path.exists():
        return None
    try:
        return _parse_info(read_tensor_metadata(path, "checkpoint", "a checkpoint"), path)
    except UserError:
        return None


def read_checkpoint(
    path: Path, expected: CheckpointInfo, state: Mapping[str, Tensor], num_steps: int
) -> CheckpointInfo | None:
    """Fill `state` from a checkpoint and return its metadata, or None if it is missing or of another job.

    Raises:
        UserError: If the file is damaged, or belongs to another recipe or seed.
    """
    if not path.exists():
        return None
    hint = f"delete {'the directory' if path.is_dir() else 'it'} to restart this job"
    tensors, metadata = read_tensor_file(path, "checkpoint", "a checkpoint", hint=hint)
    info = _parse_info(metadata, path, hint)
    if info.job != expected.job:
        return None  # left by an earlier job, which has ended
    recipe = json.loads(json.dumps(dict(expected.recipe)))
    if info.recipe != recipe or info.seed != expected.seed:
        names = sorted(key for key in {*info.recipe, *recipe} if info.recipe.get(key) != recipe.get(key)) or ["seed"]
        raise UserError(f"{path} belongs to another recipe (it differs in {', '.join(names)}); {hint}")
    if _layout(tensors) != _layout(state) or not all_finite(tensors):
        raise UserError(f"{path} contains other tensors than this job needs; {hint}")
    if not (0 <= info.step <= num_steps and math.isfinite(info.seconds) and info.seconds >= 0):
        position = f"iteration {info.step} after {info.seconds} seconds"
        raise UserError(f"{path} must be at an iteration from 0 to {num_steps}, but got {position}; {hint}")
    for name, tensor in state.items():
        tensor.copy_(tensors[name])
    return info


def all_finite(state: Mapping[str, Tensor]) -> bool:
    """Return whether no tensor contains NaN or infinity."""
    return all(math.isfinite(tensor.sum()) for tensor in state.values())  # a sum needs no memory and propagates NaN


def _parse_info(fields: Mapping[str, Any], path: Path, hint: str = "") -> CheckpointInfo:
    try:
        return CheckpointInfo(
            job=fields["job"],
            recipe=dict(fields["recipe"]),
            seed=fields["seed"],
            step=int(fields["step"]),
            seconds=float(fields["seconds"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path} is not a checkpoint; {hint}") from None


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[object, ...]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
