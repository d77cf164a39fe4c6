"""Save networks in training, so that a stopped run resumes them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from condenset.errors import UserError, warn_user
from condenset.runs.checkpoint import all_finite
from condenset.runs.context import RunContext
from condenset.runs.loop import Interrupted


class ResumableTraining(Protocol):
    """A training with a state: a `Trainer` or a wrapper around one."""

    @property
    def num_steps(self) -> int:
        """The number of steps of the training."""

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that a step changes."""

    @property
    def is_resumable(self) -> bool:
        """Whether `state` is complete."""


class TrainingCheckpoint:
    """The checkpoint of networks that train in parallel and have done the same number of steps.

    Args:
        run: The run. It writes no checkpoint without a directory.
        trainers: The trainings. They are not saved if one of them is not resumable.
        fields: Fields of the run that identify the networks: a job, since checkpoints of other jobs are ignored, or
            a recipe, since checkpoints of other recipes are an error.
    """

    def __init__(self, run: RunContext, trainers: Sequence[ResumableTraining], **fields: Any) -> None:
        self.run, self.trainers, self._began = run, trainers, time.monotonic()
        self._own_run = run.derive(**fields)
        if not all(trainer.is_resumable for trainer in trainers):
            self._own_run.directory = None
        saved = {name: torch.empty_like(tensor, device="cpu") for name, tensor in self.state.items()}
        self._first_step = self._own_run.load_checkpoint(saved, trainers[0].num_steps)
        self._saved = saved if self._first_step else {}

    @property
    def state(self) -> dict[str, Tensor]:
        """The states of all trainers. Names begin with the index of the trainer."""
        return {
            f"{index}.{name}": tensor
            for index, trainer in enumerate(self.trainers)
            for name, tensor in trainer.state.items()
        }

    @property
    def can_save(self) -> bool:
        """Whether the networks can be saved: the run has a directory, and the states are complete."""
        return self._own_run.directory is not None

    @property
    def seconds(self) -> float:
        """The time spent on these networks, including the time before a resume."""
        return self.previous_seconds + time.monotonic() - self._began

    @property
    def previous_seconds(self) -> float:
        """The time spent on these networks before a resume."""
        return self._own_run.previous_seconds

    @property
    def state_loaders(self) -> list[Callable[[Mapping[str, Tensor]], int]]:
        """For each training, the function that fills its state and returns the number of steps already done.

        A training calls it when it begins, so that on a GPU the copy runs in the stream of the training.
        """
        return [functools.partial(self._load_state, index) for index in range(len(self.trainers))]

    def _load_state(self, index: int, state: Mapping[str, Tensor]) -> int:
        if self._first_step:
            for name, tensor in state.items():
                tensor.copy_(self._saved.pop(f"{index}.{name}"))
        return self._first_step

    def save_if_due(self, step: int) -> None:
        """Save all networks after `step` steps if a checkpoint is due or the user asked to stop.

        If a network has diverged, the previous checkpoint stays: training from it has the same result.

        Raises:
            Interrupted: If the user asked to stop.
        """
        stopping, device = bool(self.run.stop.requested), self.run.compute.device
        if self._own_run.checkpoint_due(force=stopping):
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # each network may train in its own stream
            if all_finite(self.state):
                self._save(step, stopping)
            else:
                self._own_run.defer_checkpoint()
        if stopping:
            raise Interrupted

    def delete(self) -> None:
        """Delete the checkpoint after the trained networks have been saved."""
        self._own_run.delete_checkpoint()

    def _save(self, step: int, stopping: bool) -> None:
        self.run.verify_identity()
        try:
            self._own_run.save_checkpoint(step, round(self.seconds, 3), self.state, force=True)
        except UserError as error:  # the disk may be too full for a checkpoint but not for the results
            if stopping:
                raise
            self._own_run.directory = None
            warn_user(f"{error}: networks in training are lost if this run is stopped")
