"""Curves of a run for TensorBoard: losses, accuracies and seconds, written to RUN/tensorboard while it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from condenset.errors import UserError, is_number, warn_user
from condenset.io.directories import wrap_os_errors
from condenset.runs.context import RunContext

CURVES = "tensorboard"
INSTALL_HINT = "install it with: pip install 'condenset[tensorboard]'"
# The curves of each kind of event: the field of the step, and the name of the curve by the field of its value. Events
# without the first of these fields have no curves.
EVENT_CURVES = {
    "step": ("step", {"loss": "loss", "seconds": "condense seconds"}),
    "network": ("net", {"accuracy": "accuracy", "seconds": "evaluate seconds"}),
}


def check_tensorboard() -> None:
    """Raise a UserError if the package tensorboard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(f"--tensorboard needs the package tensorboard: {INSTALL_HINT}")


class CurveWriter:
    """Write the events of a run as curves. A resumed run repeats steps, which are not written twice.

    Args:
        directory: The directory for TensorBoard.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._steps = _read_steps(directory)
        directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020}.{socket.gethostname()}.{os.getpid()}"  # sorted by time
        # Without the thread of SummaryWriter, whose errors would be printed as tracebacks.
        self._writer: RecordWriter | None = RecordWriter((directory / name).open("xb"))
        self._writer.write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def write_event(self, event: Mapping[str, Any]) -> None:
        """Append an event to its curves, if it has any."""
        step_field, curves = EVENT_CURVES.get(str(event.get("event")), ("", {}))
        step = event.get(step_field)
        if self._writer is None or not isinstance(step, int) or not is_number(event.get(next(iter(curves), ""))):
            return
        try:
            for field, curve in curves.items():
                tag = re.sub(r"[^-/\w.]", "_", f"{curve}/{event.get('job') or 'run'}")
                steps = self._steps.setdefault(tag, set())  # on a cluster, networks finish in any order
                if is_number(event.get(field)) and step not in steps:
                    self._writer.write(_encode_point(tag, step, event[field], event.get("time")))
                    steps.add(step)
            self._writer.flush()  # for TensorBoard, and because a kill loses the rest
        except OSError as error:
            self.close()
            warn_user(f"the curves for TensorBoard end here: {error}")

    def close(self) -> None:
        """Close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()


def _encode_point(tag: str, step: int, value: float, moment: float | None) -> bytes:
    """Return a point of a curve in the format of TensorBoard."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    content: bytes = Event(wall_time=moment or time.time(), step=step, summary=summary).SerializeToString()
    return content


def _read_steps(directory: Path) -> dict[str, set[int]]:
    """Return the steps of each curve in a directory."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    if not directory.is_dir():
        return {}
    stored = EventAccumulator(str(directory), size_guidance={SCALARS: 0}, purge_orphaned_data=False)
    stored.Reload()
    return {tag: {event.step for event in stored.Scalars(tag)} for tag in stored.Tags()[SCALARS]}


@contextlib.contextmanager
def record_curves(run: RunContext, *, requested: bool) -> Iterator[None]:
    """Write the curves of a run, if this is requested or the run has begun with them.

    Args:
        run: The run, which has a directory.
        requested: Begin to write curves.
    """
    directory = run.directory / CURVES if run.directory else None
    if directory is None or not (requested or directory.is_dir()):
        yield
        return
    try:
        check_tensorboard()
    except UserError as error:
        warn_user(f"{error}; the curves do not continue")
        yield
        return
    with wrap_os_errors(directory):
        writer = CurveWriter(directory)
    run.on_event = writer.write_event
    try:
        yield
    finally:
        run.on_event = None
        writer.close()
