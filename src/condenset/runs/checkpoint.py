"""Save and load the state of a loop."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from condenset.engine.tasks import PREVIOUS_SUFFIX
from condenset.errors import UserError, warn_user
from condenset.io.directories import wrap_os_errors
from condenset.io.files import write_tensors
from condenset.io.metadata import read_tensor_file

CHECKPOINT = "checkpoint"
CHECKPOINT_SECONDS = 30.0
LONG_SAVE_SECONDS = 0.3  # 1% of CHECKPOINT_SECONDS: slower saves are rarer, so that they take at most 1% of the time
MAX_INTERVAL = 120.0  # in CHECKPOINT_SECONDS: a kill never loses more than about an hour


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
    """Decide when the next checkpoint is due: every 30 seconds, or more rarely if saves are slow.

    Attributes:
        last_save: The time of the last checkpoint, or of the start.
        save_seconds: The duration of the last save. 0: none, or that of another job.
    """

    last_save: float = field(default_factory=lambda: time.monotonic())
    save_seconds: float = 0.0

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last save."""
        interval = min(max(1.0, self.save_seconds / LONG_SAVE_SECONDS), MAX_INTERVAL)
        return time.monotonic() - self.last_save >= interval * CHECKPOINT_SECONDS

    def record_save(self, began: float) -> None:
        """Begin a new interval after a save."""
        self.last_save = time.monotonic()
        self.save_seconds = self.last_save - began


def write_checkpoint(path: Path, info: CheckpointInfo, state: Mapping[str, Tensor]) -> None:
    """Write a checkpoint atomically. The last one becomes the previous one, which stands in for a damaged file."""
    with wrap_os_errors(path):
        keep_previous(path)
        write_tensors(path, state, {"checkpoint": json.dumps(vars(info))})


def keep_previous(path: Path) -> None:
    """Rename the last checkpoint to the previous one, before a new one is written."""
    if path.is_file():
        path.replace(previous_path(path))


def previous_path(path: Path) -> Path:
    """Return the file of the checkpoint before the last one."""
    return path.with_name(f"{path.name}{PREVIOUS_SUFFIX}")


def delete_checkpoints(path: Path) -> None:
    """Delete the last checkpoint and the one before."""
    previous_path(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def read_info(path: Path) -> CheckpointInfo | None:
    """Return the metadata of the last undamaged checkpoint, or None if there is none."""
    for candidate in (path, previous_path(path)):
        with contextlib.suppress(UserError):
            return _read(candidate)[1]
    return None


def read_checkpoint(
    path: Path, expected: CheckpointInfo, state: Mapping[str, Tensor], num_steps: int
) -> CheckpointInfo | None:
    """Fill `state` from a checkpoint and return its metadata, or None if it is missing or of another job.

    The previous checkpoint replaces a damaged one, with a warning. It leads to the same result.

    Raises:
        UserError: If the file is damaged and there is no previous one, or it belongs to another recipe or seed.
    """
    if not path.exists() and not previous_path(path).exists():
        return None
    hint = f"delete {'the directory' if path.is_dir() else 'it'} to restart this job"
    tensors, info, problem = _read_last(path, expected.job, hint)
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
    if problem:
        warn_user(f"{problem}: the job continues from the checkpoint before it (step {info.step})")
        with wrap_os_errors(path):
            previous_path(path).replace(path)
    return info


def _read_last(path: Path, job: str, hint: str) -> tuple[dict[str, Tensor], CheckpointInfo, str]:
    """Return tensors and metadata of the last checkpoint. If it is damaged, return the previous one of the job and why.

    Without the last one, which happens if a process is killed while it writes, return the previous one.
    """
    previous = previous_path(path)
    if not path.exists():
        return *_read(previous, hint), ""
    try:
        return *_read(path, hint), ""
    except UserError:
        with contextlib.suppress(UserError):
            tensors, info = _read(previous)
            if info.job == job:
                return tensors, info, f"{path} is damaged"
        raise


def all_finite(state: Mapping[str, Tensor]) -> bool:
    """Return whether no tensor contains NaN or infinity."""
    return all(math.isfinite(tensor.sum()) for tensor in state.values())  # a sum needs no memory and propagates NaN


def _read(path: Path, hint: str = "") -> tuple[dict[str, Tensor], CheckpointInfo]:
    """Read a checkpoint; raise a UserError if it is missing or damaged."""
    tensors, fields = read_tensor_file(path, "checkpoint", "a checkpoint", hint=hint)
    try:
        return tensors, CheckpointInfo(
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
