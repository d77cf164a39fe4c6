"""The context of a run: seed, device, directory, checkpoints and events."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from condenset.engine.device import ComputeDevice
from condenset.engine.tasks import Engine
from condenset.errors import UserError, check_int
from condenset.io.progress import NullProgress
from condenset.runs.checkpoint import (
    CHECKPOINT,
    CheckpointInfo,
    CheckpointTimer,
    all_finite,
    delete_checkpoints,
    read_checkpoint,
    read_info,
    write_checkpoint,
)
from condenset.runs.events import EVENTS, append_event, is_network_event, iter_events
from condenset.runs.identity import RunIdentity
from condenset.runs.snapshots import write_snapshot

if TYPE_CHECKING:
    from condenset.data.condensed_set import CondensedSet


@dataclass
class StopState:
    """The stop request of a run and its derived runs.

    Attributes:
        listening: Whether a loop runs that checks `requested`.
        requested: The number of the signal that asked to stop, or 0.
    """

    listening: bool = False
    requested: int = 0


@dataclass(kw_only=True)
class RunContext:
    """What a method needs in addition to data and recipe.

    Attributes:
        seed: The seed of all random numbers.
        compute: Device and precision.
        directory: Where checkpoints and events are written. None: nothing is written.
        identity: The identity of the run directory, which is verified before each write. None: not verified.
        shared_directory: The directory of an experiment, whose parts share reference networks.
        job: The name of the current job. A checkpoint of another job is ignored.
        recipe: The full recipe of the current job. A checkpoint of another recipe is an error.
        progress: The progress display.
        engine: Runs parts of the work as tasks. None: the work is not divided.
        classes_per_chunk: The number of classes computed at once. None: as many as fit.
        memory_limit: The bytes that data and computation may use. None: enough to keep the device busy.
        stop: The stop request, which derived runs share: a signal reaches the loop of any of them.
        on_step_part: Called by `check_stop`. A loop sets it while a step runs.
        on_event: Called with every event that is logged.
        exact_steps: Iterations after which the current set is saved exactly, for an experiment.
        num_snapshots: Number of evenly spaced iterations after which small pictures of the images are saved.
        previous_seconds: The time spent on this job before it was resumed.
        checkpoint_name: The file name of the checkpoint.
        cache: Results that the jobs of a run share, such as reference networks.
        checkpoint_timer: Decides when the next checkpoint is due.
    """

    seed: int = 0
    compute: ComputeDevice = field(default_factory=ComputeDevice.select)
    directory: Path | None = None
    identity: RunIdentity | None = None
    shared_directory: Path | None = None
    job: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    progress: NullProgress = field(default_factory=NullProgress)
    engine: Engine | None = None
    classes_per_chunk: int | None = None
    memory_limit: int | None = None
    stop: StopState = field(default_factory=StopState)
    on_step_part: Callable[[float], None] | None = None
    on_event: Callable[[Mapping[str, Any]], None] | None = None
    exact_steps: frozenset[int] = frozenset()
    num_snapshots: int = 0
    previous_seconds: float = 0.0
    checkpoint_name: str = CHECKPOINT
    cache: dict[str, Any] = field(default_factory=dict)
    checkpoint_timer: CheckpointTimer = field(default_factory=CheckpointTimer)

    def __post_init__(self) -> None:
        self.seed = check_int("seed", self.seed)

    def derive(self, **fields: Any) -> RunContext:
        """Return a copy with other fields, for work within a job that has its own seconds and checkpoints."""
        return replace(self, **{"previous_seconds": 0.0, "checkpoint_timer": CheckpointTimer(), **fields})

    @property
    def networks_directory(self) -> Path | None:
        """The directory of networks trained on the whole dataset."""
        directory = self.shared_directory or self.directory
        return directory / "networks" if directory else None

    @property
    def checkpoint_path(self) -> Path | None:
        """The file of the checkpoint, or None without a directory."""
        return self.directory / self.checkpoint_name if self.directory else None

    @property
    def settings_hash(self) -> str:
        """A hash of the settings of the run, which its records contain; empty without an identity."""
        return self.identity.settings_hash if self.identity else ""

    def verify_identity(self) -> None:
        """Raise a UserError if the directory does not belong to this run any more. Call it before each write."""
        if self.identity is not None:
            self.identity.verify()

    def check_stop(self, fraction: float) -> None:
        """Report that a further fraction of the current step is done, and stop if the user asked to.

        Steps call it between their parts. It has no effect while a step is captured, or outside of `run_loop`.
        """
        if self.on_step_part is not None:
            self.on_step_part(fraction)

    def log_event(self, kind: str, **values: Any) -> None:
        """Append an event of the current job to events.jsonl."""
        if self.directory is not None:
            self.verify_identity()
            event = {"event": kind, "job": self.job, "time": round(time.time(), 3), **values}
            append_event(self.directory / EVENTS, event)
            if self.on_event is not None:
                self.on_event(event)

    def copy_event(self, event: Mapping[str, Any]) -> None:
        """Log an event that a worker logged for the current job."""
        fields = {name: value for name, value in event.items() if name not in ("event", "job", "time")}
        self.log_event(event["event"], **fields)

    def read_events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of one kind that the current job logged."""
        if self.directory is None:
            return []
        events = iter_events(self.directory / EVENTS, kind)
        return [event for event in events if event.get("job") == self.job]

    def network_events(self, **fields: str) -> list[dict[str, Any]]:
        """Return the valid events of trained networks whose fields have these values."""
        return [
            event
            for event in self.read_events("network")
            if is_network_event(event) and all(event.get(key) == value for key, value in fields.items())
        ]

    def checkpoint_due(self, *, force: bool = False) -> bool:
        """Return whether a checkpoint should be written now."""
        return self.checkpoint_path is not None and (force or self.checkpoint_timer.is_due())

    def defer_checkpoint(self) -> None:
        """Skip a checkpoint that is due: there is nothing valid to write now."""
        self.checkpoint_timer.last_save = time.monotonic()

    def save_checkpoint(self, step: int, seconds: float, state: Mapping[str, Tensor], *, force: bool = False) -> None:
        """Save the state of the job if a checkpoint is due.

        Raises:
            UserError: If the state contains NaN or infinity, or the file cannot be written.
        """
        if self.checkpoint_path is None or not self.checkpoint_due(force=force):
            return
        began = time.monotonic()
        self.check_finite(state, step)
        self.verify_identity()
        write_checkpoint(self.checkpoint_path, self._checkpoint_info(step, seconds), state)
        self.progress.send_files()  # within the time that decides how rare checkpoints are
        self.checkpoint_timer.record_save(began)

    def load_checkpoint(self, state: Mapping[str, Tensor], num_steps: int) -> int:
        """Fill `state` from the checkpoint of the job and return its step, or 0 if there is none."""
        if self.checkpoint_path is None:
            return 0
        info = read_checkpoint(self.checkpoint_path, self._checkpoint_info(0, 0.0), state, num_steps)
        if info is None:
            return 0
        self.previous_seconds = info.seconds
        return info.step

    def checkpoint_recipe(self) -> dict[str, Any] | None:
        """Return the recipe of the job's checkpoint, or None if there is no valid one."""
        info = read_info(self.checkpoint_path) if self.checkpoint_path else None
        return dict(info.recipe) if info and info.job == self.job else None

    def delete_checkpoint(self) -> None:
        """Delete the checkpoint after the result of the job has been saved."""
        self.checkpoint_timer.save_seconds = 0.0  # the state of the next job may be smaller
        if self.checkpoint_path is not None:
            self.verify_identity()
            delete_checkpoints(self.checkpoint_path)

    def exact_set_path(self, step: int) -> Path:
        """Return the file of the set as it was after `step` iterations."""
        assert self.directory is not None, "snapshots need a directory"
        return self.directory / "snapshots" / f"{step}.safetensors"

    def save_exact_set(self, step: int, condensed: CondensedSet) -> None:
        """Save the current set. Its provenance contains the number of iterations."""
        self.verify_identity()
        snapshot = replace(condensed, provenance={**condensed.provenance, "step": step})
        snapshot.save(self.exact_set_path(step), overwrite=True)

    def save_previews(self, step: int, sets: Sequence[CondensedSet]) -> None:
        """Save small pictures of the images of sets after `step` iterations."""
        assert self.directory is not None, "snapshots need a directory"
        self.verify_identity()
        for condensed in sets:
            write_snapshot(self.directory, step, condensed)

    def check_finite(self, state: Mapping[str, Tensor], step: int) -> None:
        """Raise an error if the state contains NaN or infinity: a finite loss does not rule it out."""
        if not all_finite(state):
            raise self.divergence_error(f"the images contain NaN or infinity after iteration {step}")

    def divergence_error(self, symptom: str) -> UserError:
        """Return an error that names the symptom, a remedy and the last checkpoint of the job."""
        path, last = self.checkpoint_path, "There is no checkpoint yet"
        info = read_info(path) if path else None
        if info and info.job == self.job:
            last = f"The last good checkpoint is {path} (after iteration {info.step})"
        return UserError(f"Optimisation diverged: {symptom}. Try a smaller lr. {last}.")

    def _checkpoint_info(self, step: int, seconds: float) -> CheckpointInfo:
        return CheckpointInfo(job=self.job, recipe=dict(self.recipe), seed=self.seed, step=step, seconds=seconds)
