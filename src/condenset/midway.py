"""Networks half trained: what a run keeps of them, so that after a stop they go on."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from condenset.errors import UserError
from condenset.runs import Interrupted, Run, all_finite


class Training(Protocol):
    """What trains a network: a Trainer, or one that watches it."""

    @property
    def num_steps(self) -> int: ...

    @property
    def state(self) -> dict[str, Tensor]: ...


class Midway:
    """Networks that train side by side, or one, and their checkpoint, which stands at a step that all rest at.

    about: what the run's checkpoint is to know them by: a job of their own, since another job's is passed over, or a
    recipe, since another recipe's is refused; with None for a folder they are not kept.
    """

    def __init__(self, run: Run, trainers: Sequence[Training], **about: Any) -> None:
        self.run, self.trainers, self._began = run, trainers, time.monotonic()
        self.kept = run.aside(**about)
        saved = {name: torch.empty_like(tensor, device="cpu") for name, tensor in self.state.items()}
        self._first = self.kept.restore(saved, trainers[0].num_steps)
        self._saved = saved if self._first else {}  # until each training has begun, and taken its own

    @property
    def state(self) -> dict[str, Tensor]:
        """That of all trainers, each by its place."""
        named = [(place, *item) for place, trainer in enumerate(self.trainers) for item in trainer.state.items()]
        return {f"{place}.{name}": tensor for place, name, tensor in named}

    @property
    def seconds(self) -> float:
        """Spent on these networks so far, those before a stop included, as far as they were not lost."""
        return self.kept.seconds_before + time.monotonic() - self._began

    @property
    def restores(self) -> list[Callable[[Mapping[str, Tensor]], int]]:
        """For each network's training, to go on: each fills its own state as it begins, on a GPU in its own stream."""
        return [functools.partial(self._restore, place) for place in range(len(self.trainers))]

    def _restore(self, place: int, state: Mapping[str, Tensor]) -> int:
        if self._first:
            for name, tensor in state.items():
                tensor.copy_(self._saved.pop(f"{place}.{name}"))
        return self._first

    def rest(self, done: int) -> None:
        """Keep all as they rest at this step if it is time to, or if the user asked to stop, and then stop.

        Where one has diverged, what was kept before stays: from there it comes to the same.
        """
        stopping, device = bool(self.run.stop_requested), self.run.place.device
        if self.kept.checkpoint_due(force=stopping):
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # each network may be at work in a stream of its own
            if all_finite(self.state):
                self._save(done, stopping)
            else:
                self.kept.put_off()
        if stopping:
            raise Interrupted

    def _save(self, done: int, stopping: bool) -> None:
        try:
            self.kept.checkpoint(done, round(self.seconds, 3), self.state, force=True)
        except UserError as error:  # a full disk, on which there may still be room for the line that they come to
            if stopping:
                raise
            self.kept.folder = None
            warnings.warn(f"{error}: networks half trained are lost if this is stopped", stacklevel=2)
