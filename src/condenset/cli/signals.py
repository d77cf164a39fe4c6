"""Handle SIGINT and SIGTERM: the only place that installs signal handlers."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from condenset.runs.context import RunContext

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def exit_on_signal(run: RunContext | None = None, hint: str = "") -> Iterator[None]:
    """Stop on SIGINT or SIGTERM, print "stopped" and exit with 128 plus the number of the signal.

    A signal raises KeyboardInterrupt, so that temporary files are removed. If a loop of `run` is active, the first
    signal only asks the loop to stop after the current step and a second one raises. Blocks can be nested.

    Args:
        run: The run whose loops are asked to stop.
        hint: Printed after "stopped": how to continue.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if run is not None:
            run.stop_requested = number
            if run.listening and len(received) == 1:
                print("\nstopping after this step …", file=sys.stderr, flush=True)
                return
        raise KeyboardInterrupt

    try:
        # Shells make background processes ignore SIGINT. A run handles it anyway: it can stop without loss.
        with _install(handle, replace_ignored=run is not None):
            yield
    except BaseException as error:
        # A library that a signal interrupts may raise an error of another type instead.
        interrupted = isinstance(error, KeyboardInterrupt) or (bool(received) and isinstance(error, Exception))
        if not interrupted:
            raise
        print(f"stopped. {hint}" if hint else "stopped", file=sys.stderr)
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None


@contextlib.contextmanager
def _install(handler: Handler, *, replace_ignored: bool) -> Iterator[None]:
    """Install a handler for the block. Python allows this only in the main thread; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in SIGNALS if replace_ignored or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)
