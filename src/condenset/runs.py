"""A run: its seed and place, and the directory that holds recipe, checkpoint, events and results: nothing is lost."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from condenset.engine.place import Place
from condenset.errors import UserError, is_number, whole
from condenset.files import read_metadata, read_tensors, write_tensors
from condenset.folders import writable
from condenset.progress import Silent

if TYPE_CHECKING:
    from condenset.types import CondensedSet

CHECKPOINT, EVENTS = "checkpoint", "events.jsonl"
CHECKPOINT_SECONDS = 30.0
LONG_SAVE_SECONDS = 0.6  # a checkpoint that takes longer comes as much more seldom: it costs 2% of the time
LONGEST_WAIT = 20.0  # in CHECKPOINT_SECONDS: however long one takes, no more than ten minutes are ever lost
SETTLE_SECONDS = 0.5  # between two looks at the device


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; everything done so far is on disk."""


@dataclass(kw_only=True)
class Run:
    """What a method needs beside data and recipe; without a folder nothing is written.

    job: which of the run's jobs is under way; recipe: its full recipe, which a checkpoint must agree with.
    """

    seed: int = 0
    place: Place = field(default_factory=Place.best)
    folder: Path | None = None
    root: Path | None = None  # of an experiment, whose parts work in folders of their own but share networks
    job: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    progress: Silent = field(default_factory=Silent)
    chunk: int | None = None  # classes that pass together; None: as many as fit
    memory: int | None = None  # bytes that they, data and images may take; None: what keeps the device busy
    listening: bool = False  # a loop is under way that looks at stop_requested
    stop_requested: int = 0  # the number of the signal that asked for it
    snapshots: frozenset[int] = frozenset()  # iterations after which the set is kept as it stands
    seconds_before: float = 0.0  # spent on this job before a resume
    kept_as: str = CHECKPOINT  # the name of the checkpoint's file
    shared: dict[str, Any] = field(default_factory=dict)  # what one job made and others need too, such as a network
    _last_save: float = field(default_factory=time.monotonic)
    _wait: float = 1.0  # between two checkpoints, in CHECKPOINT_SECONDS

    def __post_init__(self) -> None:
        self.seed = whole("seed", self.seed)

    @property
    def networks_folder(self) -> Path | None:
        """Where networks trained on the whole set are kept."""
        home = self.root or self.folder
        return home / "networks" if home else None

    @property
    def checkpoint_path(self) -> Path | None:
        return self.folder / self.kept_as if self.folder else None

    def aside(self, **fields: Any) -> Run:
        """The same run with these fields, for work within a job that has seconds and checkpoints of its own."""
        return replace(self, **{"seconds_before": 0.0, "_last_save": time.monotonic(), **fields})

    def event(self, kind: str, **values: Any) -> None:
        """Append one line to events.jsonl."""
        if self.folder is None:
            return
        line = json.dumps({"event": kind, "job": self.job, "time": round(time.time(), 3), **values})
        path = self.folder / EVENTS
        with writable(path), path.open("ab+") as file:
            if file.tell() and file.seek(-1, 2) and file.read() != b"\n":
                file.write(b"\n")  # a kill cut the last line short
            file.write(line.encode() + b"\n")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind of this job; a last line cut short by a kill is passed over."""
        path = self.folder / EVENTS if self.folder else None
        if path is None or not path.is_file():
            return []
        found = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and (event.get("event"), event.get("job")) == (kind, self.job):
                    found.append(event)
        return found

    def networks(self, **about: str) -> list[dict[str, Any]]:
        """The events of networks that were tested, those that these fields are of; what says none is passed over."""

        def is_one(event: dict[str, Any]) -> bool:
            net = event.get("net")
            numbers = type(net) is int and net >= 0 and is_number(event.get("seconds"))
            return numbers and all(event.get(key) == value for key, value in about.items())

        return [event for event in self.events("network") if is_one(event)]

    def checkpoint_due(self, *, force: bool = False) -> bool:
        """Whether a checkpoint is to be written now."""
        waited = time.monotonic() - self._last_save
        return self.checkpoint_path is not None and (force or waited >= self._wait * CHECKPOINT_SECONDS)

    def put_off(self) -> None:
        """Let a checkpoint that is due be due later: there is nothing to write now."""
        self._last_save = time.monotonic()

    def checkpoint(self, step: int, seconds: float, state: Mapping[str, Tensor], *, force: bool = False) -> None:
        """Save the whole state of the job, if it is time to and all of it is finite."""
        if self.checkpoint_path is None or not self.checkpoint_due(force=force):
            return
        began = time.monotonic()
        _check_finite(self, state, step)
        meta = {"job": self.job, "recipe": dict(self.recipe), "seed": self.seed, "step": step, "seconds": seconds}
        with writable(self.checkpoint_path):
            write_tensors(self.checkpoint_path, state, {"checkpoint": json.dumps(meta)})
        self._last_save = time.monotonic()
        self._wait = min(max(1.0, (self._last_save - began) / LONG_SAVE_SECONDS), LONGEST_WAIT)

    def snapshot_path(self, step: int) -> Path:
        """Where the set as it stood after so many iterations is kept."""
        assert self.folder is not None, "snapshots need a folder"
        return self.folder / "snapshots" / f"{step}.safetensors"

    def snapshot(self, step: int, small: CondensedSet) -> None:
        """Keep the set as it stands; its provenance says after how many iterations."""
        kept = replace(small, provenance={**small.provenance, "step": step})
        kept.save(self.snapshot_path(step), overwrite=True)

    def kept_recipe(self) -> dict[str, Any] | None:
        """The recipe of this job's checkpoint; None where there is none, or none that `restore` would take."""
        path = self.checkpoint_path
        if path is None or not path.exists():
            return None
        with contextlib.suppress(UserError, KeyError, TypeError, ValueError, RecursionError):
            meta = json.loads(read_metadata(path)["checkpoint"])
            if meta["job"] == self.job and isinstance(meta["recipe"], dict):
                return dict(meta["recipe"])
        return None

    def restore(self, state: Mapping[str, Tensor], most: int) -> int:
        """Fill the state from the job's checkpoint, if there is one, and give the step it stood at, of so many."""
        path = self.checkpoint_path
        if path is None or not path.exists():
            return 0
        anew = f"delete {'the folder' if path.is_dir() else 'it'} to start this job again"
        try:
            tensors, metadata = read_tensors(path)
        except UserError as error:
            raise UserError(f"{error}; {anew}") from None
        try:
            meta = json.loads(metadata["checkpoint"])
            job, recipe, seed = meta["job"], dict(meta["recipe"]), meta["seed"]
            step, seconds = int(meta["step"]), float(meta["seconds"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise UserError(f"{path} is not a checkpoint; {anew}") from None
        if job != self.job:
            return 0  # of an earlier job, which has ended
        mine = json.loads(json.dumps(dict(self.recipe)))
        if recipe != mine or seed != self.seed:
            names = sorted(k for k in {*recipe, *mine} if recipe.get(k) != mine.get(k)) or ["seed"]
            differ = "it differs in " + ", ".join(names)
            raise UserError(f"{path} belongs to another recipe ({differ}); {anew}")
        found, wanted = ({name: (each.dtype, each.shape) for name, each in of.items()} for of in (tensors, state))
        if found != wanted or not all_finite(tensors):
            raise UserError(f"{path} holds other tensors than this job; {anew}")
        if not (0 <= step <= most and math.isfinite(seconds) and seconds >= 0):
            told = f"{step} after {seconds} seconds"
            raise UserError(f"{path} must stand at one of {most} iterations, but got {told}; {anew}")
        for name, tensor in state.items():
            tensor.copy_(tensors[name])
        self.seconds_before = seconds
        return step

    def drop_checkpoint(self) -> None:
        """The job has ended and its set is safe."""
        self._wait = 1.0
        if self.checkpoint_path is not None:
            self.checkpoint_path.unlink(missing_ok=True)


def is_share(value: object) -> bool:
    """Whether this is an accuracy: a fraction from 0 to 1."""
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def iterate(
    run: Run,
    state: Mapping[str, Tensor],
    iterations: int,
    prepare: Callable[[], Callable[[int], None]],
    text: str,
    made: Callable[[float], CondensedSet] | None = None,
) -> float:
    """Advance `state` in place to the last iteration, with checkpoints, progress, events; give the seconds spent.

    prepare() gives the step, made after the state is restored; step(i) runs iteration i and leaves its loss in
    state["losses"][i % len]. The device is waited for only when progress, a checkpoint or a snapshot is due; made(s)
    gives the set as it stands after s seconds, for snapshots, whose own time does not count.
    """
    assert made or not run.snapshots, "this method keeps no snapshots"
    clock = time.monotonic()
    first = run.restore(state, iterations)
    step = prepare()
    if first:
        clock = time.monotonic()  # to make the step ready has been counted: the seconds are those of a run undisturbed
    losses = state["losses"]
    checked, looked, stretch = first, time.monotonic(), 1

    def settle(done: int) -> None:
        nonlocal checked, looked, stretch, clock
        values = losses.index_select(0, torch.arange(checked, done, device=losses.device) % len(losses)).tolist()
        if values:  # a GPU is given no more at once than it does by the next look, or a stop would wait for all of it
            each = (time.monotonic() - looked) / len(values)
            stretch = max(1, min(len(losses), int(SETTLE_SECONDS / max(each, 1e-9))))
        for number, value in enumerate(values, start=checked + 1):
            if not math.isfinite(value):
                raise UserError(_diverged(run, f"the loss is no longer a number at iteration {number}"))
        seconds = run.seconds_before + time.monotonic() - clock
        if values:
            run.event("step", step=done, loss=values[-1], seconds=round(seconds, 3))
            run.progress.update(done, f"loss {values[-1]:.4g}")
        if values and made and done in run.snapshots:  # before the checkpoint, which a resumed run goes on from
            run.snapshot(done, made(seconds))
            clock = time.monotonic() + run.seconds_before - seconds
        checked = done
        stopping = bool(run.stop_requested)
        run.checkpoint(done, seconds, state, force=stopping)
        if stopping:
            raise Interrupted
        looked = time.monotonic()

    with _watched(run, text, iterations, first):
        for i in range(first, iterations):
            step(i)
            late = time.monotonic() - looked >= SETTLE_SECONDS or i + 1 - checked >= stretch
            if late or run.stop_requested or i + 1 in run.snapshots:
                settle(i + 1)
        settle(iterations)
        _check_finite(run, state, iterations)
    return run.seconds_before + time.monotonic() - clock


@contextlib.contextmanager
def reported(run: Run, text: str, total: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Give `report(done, note)` to call between parts of work that keeps nothing of a part: progress, and stopping."""

    def report(done: int, note: str = "") -> None:
        run.progress.update(done, note)
        if run.stop_requested:
            raise Interrupted

    with _watched(run, text, total, done):
        yield report


@contextlib.contextmanager
def _watched(run: Run, text: str, total: int, done: int) -> Iterator[None]:
    """Progress is shown, and a request to stop is looked for, meanwhile."""
    run.progress.start(text, total, done)
    run.listening = True
    try:
        yield
    finally:
        run.listening = False
        run.progress.stop()


def all_finite(state: Mapping[str, Tensor]) -> bool:
    """Whether all of it is numbers still."""
    return all(math.isfinite(tensor.sum()) for tensor in state.values())  # a sum needs no memory, and keeps NaN


def _check_finite(run: Run, state: Mapping[str, Tensor], step: int) -> None:
    """A finite loss can still have left NaN behind: the next one would be it."""
    if not all_finite(state):
        raise UserError(_diverged(run, f"the images are no longer numbers after iteration {step}"))


def _diverged(run: Run, what: str) -> str:
    message, path = f"{what}: a smaller lr may help", run.checkpoint_path
    if path is not None and path.exists():
        meta = json.loads(read_metadata(path)["checkpoint"])
        if meta["job"] == run.job:
            return f"{message}; the last good checkpoint is {path} (after iteration {meta['step']})"
    return f"{message}; there is no checkpoint yet"
