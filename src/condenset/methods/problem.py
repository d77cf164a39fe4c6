"""The base of methods that learn by iterations: their state, their step and their loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from condenset.data.image_data import ImageData
from condenset.engine import rng
from condenset.engine.cuda_graph import capture_step
from condenset.methods.common import describe_job
from condenset.methods.samplers import NetworkSampler, NoNetworks
from condenset.runs.context import RunContext
from condenset.runs.loop import MakeSets, run_loop

NUM_LOSSES = 1024  # losses stored on the device until the loop reads them


class LearningProblem(ABC):
    """The state of a run and its step. A subclass defines what is learned, and the step.

    Attributes:
        data, recipe, run: What is condensed, how and where.
        networks: Samples the network of each iteration.
        losses: The last losses.
        clock: The number of iterations so far.
    """

    recipe: Any
    networks: NetworkSampler = NoNetworks()

    def __init__(self, data: ImageData, recipe: Any, run: RunContext) -> None:
        self.data, self.recipe, self.run = data, recipe, run
        self.losses = torch.zeros(NUM_LOSSES, device=run.compute.device)
        self.clock = torch.zeros((), dtype=torch.int64, device=run.compute.device)

    @property
    @abstractmethod
    def learned(self) -> dict[str, Tensor]:
        """All tensors that a step changes, by their names in a checkpoint, except the losses and the clock."""

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes from one iteration to the next."""
        return {**self.learned, "losses": self.losses, "clock": self.clock}

    def step(self) -> None:
        """Run the iteration that the clock shows: update what is learned in place, and record the loss."""
        raise NotImplementedError

    def record_loss(self, loss: Tensor) -> None:
        """Store the loss of the current iteration where `run_loop` reads it, and advance the clock."""
        self.losses.index_copy_(0, (self.clock % len(self.losses))[None], loss.detach()[None])
        self.clock += 1

    def make_key(self, purpose: str) -> Tensor:
        """Return the key of the random numbers for a purpose."""
        return rng.make_key(self.run.seed, purpose, device=self.clock.device)

    def make_step(self) -> Callable[[int], None]:
        """Return the step that `run_loop` calls with the number of the iteration, once the state is restored."""
        if not self.networks.on_host:
            fast_step = capture_step(self.step, list(self.state.values()), self.run.compute)
            return lambda iteration: fast_step()

        def step_on_host(iteration: int) -> None:
            with self.networks.user_code(iteration):
                self.networks.prepare(iteration)
                self.step()

        return step_on_host

    def learn(
        self, make_set: MakeSets | None = None, *, iterations: int | None = None, description: str | None = None
    ) -> float:
        """Run to the last iteration, and return the seconds spent.

        Args:
            make_set: Build the current set for snapshots, as in `run_loop`.
            iterations: The number of iterations. None: that of the recipe.
            description: The label of the progress bar. None: the method and its images per class.
        """
        iterations = self.recipe.iterations if iterations is None else iterations
        description = description or describe_job(self.recipe)
        return run_loop(self.run, self.state, iterations, self.make_step, description, make_set)
