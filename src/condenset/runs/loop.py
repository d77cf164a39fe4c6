"""Run the iterations of a method with progress, events, checkpoints and stop requests."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from condenset.runs.context import RunContext
from condenset.runs.snapshots import spaced_steps

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet

SYNC_SECONDS = 0.5  # between two times that the host waits for the device
LOGGED_LOSSES = 100  # evenly spaced iterations whose loss is logged, whatever the speed
SLOW_STEP_SECONDS = 2.0  # from this on, a step can stop between its parts

MakeSets = Callable[[float], "CondensedSet | Sequence[CondensedSet]"]


class Interrupted(KeyboardInterrupt):
    """The user asked to stop, and all work done so far is saved."""


def run_loop(
    run: RunContext,
    state: Mapping[str, Tensor],
    iterations: int,
    make_step: Callable[[], Callable[[int], None]],
    description: str,
    make_set: MakeSets | None = None,
) -> float:
    """Advance `state` in place from its checkpoint, if there is one, to the last iteration.

    Args:
        run: The run, which provides checkpoints, events and progress.
        state: All tensors that a step changes. `state["losses"]` is a ring buffer.
        iterations: The number of iterations in total.
        make_step: Return the step function. It is called after the state has been loaded. `step(i)` runs iteration i
            and writes its loss to `state["losses"][i % len(losses)]`.
        description: The label of the progress bar.
        make_set: Build the current set, or several that are learned at once, given the seconds spent, for snapshots.
            Their time is not counted.

    Returns:
        The seconds spent, including those before a resume.
    """
    assert make_set or not run.exact_steps, "this method cannot save the set during a run"
    began = time.monotonic()
    first = run.load_checkpoint(state, iterations)
    step = make_step()
    if first:
        began = time.monotonic()  # the time to make the step was counted before the checkpoint
    monitor = _LoopMonitor(run, state, first, began, iterations, make_set)
    if not first:
        monitor.save_snapshots(0)
    with _listen(run, description, iterations, first):
        for i in range(first, iterations):
            monitor.run_step(step, i)
            if monitor.is_due(i + 1):
                monitor.sync(i + 1)
        monitor.sync(iterations)
        run.check_finite(state, iterations)
    return monitor.seconds


class _LoopMonitor:
    """Wait for the device now and then: check the losses, report progress, save checkpoints and snapshots."""

    def __init__(
        self,
        run: RunContext,
        state: Mapping[str, Tensor],
        first: int,
        began: float,
        iterations: int,
        make_set: MakeSets | None,
    ) -> None:
        self.run, self.state, self.make_set = run, state, make_set
        self._preview_steps = spaced_steps(run.num_snapshots, iterations) if run.directory else frozenset()
        self._saved_steps = run.exact_steps | self._preview_steps if make_set else frozenset()
        self._log_interval = max(1, iterations // LOGGED_LOSSES)
        self._began, self._last_step, self._last_sync = began, first, time.monotonic()
        self._first, self._step_seconds = first, 0.0  # of the last step
        self._last_report, self._note = time.monotonic(), ""
        self._max_steps = 1  # before the next sync
        self._step, self._step_fraction = first, 0.0  # the current step, and how much of it is done
        self._can_stop = False

    @property
    def seconds(self) -> float:
        """The time spent on the job, including the time before a resume."""
        return self.run.previous_seconds + time.monotonic() - self._began

    def run_step(self, step: Callable[[int], None], number: int) -> None:
        """Run one step, which can stop between its parts if it is slow. The state before the step is then saved.

        The first step needs no copy of the state, because its state is that of the checkpoint or of the seed.
        """
        is_slow, is_first = self._step_seconds >= SLOW_STEP_SECONDS, number == self._first
        previous: Mapping[str, Tensor] = {}
        if is_slow and self.run.checkpoint_path:
            previous = {name: tensor.clone() for name, tensor in self.state.items()}
        seconds, began = self.seconds, time.monotonic()
        self._step, self._step_fraction, self._can_stop = number, 0.0, is_slow or is_first
        self.run.on_step_part = self._on_step_part
        try:
            step(number)
        except Interrupted:
            if previous:
                self.run.save_checkpoint(number, seconds, previous, force=True)
            raise
        finally:
            self.run.on_step_part = None
        self._step_seconds = time.monotonic() - began

    def _on_step_part(self, fraction: float) -> None:
        """Report that a further fraction of the current step is done, and stop if the user asked to."""
        self._step_fraction = min(self._step_fraction + fraction, 1.0)  # warm-up steps repeat their parts
        if time.monotonic() - self._last_report >= SYNC_SECONDS:
            self._last_report = time.monotonic()
            self.run.progress.update(self._step + self._step_fraction, self._note)
        if self._can_stop and self.run.stop.requested:
            raise Interrupted

    def is_due(self, done: int) -> bool:
        """Return whether to wait for the device after `done` iterations."""
        late = time.monotonic() - self._last_sync >= SYNC_SECONDS or done - self._last_step >= self._max_steps
        return late or bool(self.run.stop.requested) or done in self._saved_steps

    def sync(self, done: int) -> None:
        """Wait until `done` iterations are computed, and report and save them."""
        losses = self._read_losses(done)
        seconds = self.seconds
        if losses:
            self._log_losses(losses, seconds)
            self._last_report, self._note = time.monotonic(), f"loss {losses[-1]:.4g}"
            self.run.progress.update(done, self._note)
        if losses:
            self.save_snapshots(done)  # before the checkpoint that a resume starts from
        self._last_step = done
        stopping = bool(self.run.stop.requested)
        self.run.save_checkpoint(done, seconds, self.state, force=stopping)
        if stopping:
            raise Interrupted
        self._last_sync = time.monotonic()

    def save_snapshots(self, done: int) -> None:
        """Save the sets as they are after `done` iterations, if this is requested. The time is not counted."""
        if self.make_set is None or done not in self._saved_steps:
            return
        seconds = self.seconds
        self.run.check_finite(self.state, done)
        result = self.make_set(seconds)
        sets = result if isinstance(result, Sequence) else [result]
        if done in self.run.exact_steps:
            self.run.save_exact_set(done, sets[0])
        if done in self._preview_steps:
            self.run.save_previews(done, sets)
        self._began = time.monotonic() + self.run.previous_seconds - seconds

    def _log_losses(self, losses: Sequence[float], seconds: float) -> None:
        """Log the last loss, and those of evenly spaced iterations, which are the same for all shards of a job."""
        for step, loss in enumerate(losses, start=self._last_step + 1):
            if step % self._log_interval == 0 or step == self._last_step + len(losses):
                self.run.log_event("step", step=step, loss=loss, seconds=round(seconds, 3))

    def _read_losses(self, done: int) -> list[float]:
        """Return the losses since the last sync, which must be finite."""
        losses = self.state["losses"]
        index = torch.arange(self._last_step, done, device=losses.device) % len(losses)
        values: list[float] = losses.index_select(0, index).tolist()
        if values:  # queue no more steps than the device computes until the next sync, or a stop would wait for them
            step_seconds = (time.monotonic() - self._last_sync) / len(values)
            self._max_steps = max(1, min(len(losses), int(SYNC_SECONDS / max(step_seconds, 1e-9))))
        for number, value in enumerate(values, start=self._last_step + 1):
            if not math.isfinite(value):
                raise self.run.divergence_error(f"the loss is {value} at iteration {number}")
        return values


@contextlib.contextmanager
def track_progress(run: RunContext, description: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Yield `report(done, note)`, which shows progress and raises `Interrupted` after a stop request.

    Use it for work without checkpoints.
    """

    def report(done: int, note: str = "") -> None:
        run.progress.update(done, note)
        if run.stop.requested:
            raise Interrupted

    with _listen(run, description, total, done):
        yield report


@contextlib.contextmanager
def _listen(run: RunContext, description: str, total: int, done: int) -> Iterator[None]:
    """Show progress while a loop checks for stop requests."""
    run.progress.start(description, total, done)
    was_listening, run.stop.listening = run.stop.listening, True
    try:
        yield
    finally:
        run.stop.listening = was_listening
        run.progress.stop()
